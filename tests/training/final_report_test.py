"""final_report: the last lines of a run, and when report.json is written."""

import json
import types

import pytest

from distmnist.common import cli, console
from distmnist.logdir import report
from distmnist.training import final_report

STRATEGY = types.SimpleNamespace(
  batches_per_update=6, push_period=2, max_staleness=None
)
OUTCOME = {
  'best_step': None,
  'validation_accuracy': None,
  'test_accuracy': 0.9,
  'test_metrics': {'accuracy': 0.9},
  'validation_metrics': None,
  'test_examples': 10,
  'unit': 'images',
  'global_step': 40,
  'final_loss': 0.5,
  'train_secs': 2.0,
  'total_secs': 3.0,
}


@pytest.fixture
def lines(set_flags):
  lines = []
  console.print_logs(lines.append)
  return lines


def make_stats(worker, **stats):
  return report.WorkerStats(worker, life=f'life {worker}', **stats)


def test_it_says_who_was_not_heard_of_and_where_the_report_is(lines, tmp_path):
  workers = [make_stats(0, local_steps=10), make_stats(2, local_steps=30)]
  final_report.publish(OUTCOME, workers, STRATEGY, 4, str(tmp_path))
  found = json.loads((tmp_path / 'report.json').read_text())
  assert found['workers_not_heard_of'] == [1, 3]
  assert found['pushes_per_update'] == 3
  assert found['local_steps'] == 40
  assert lines[0] == 'test accuracy       0.9000'
  assert lines[-3] == f'report              {tmp_path}/report.json'


def test_a_run_in_which_no_step_was_made_keeps_its_report(lines, tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('{}')
  final_report.publish(OUTCOME, [make_stats(0)], STRATEGY, 1, str(tmp_path))
  assert path.read_text() == '{}'
  assert lines[-1].startswith('already finished at step 40: there was nothing ')


def test_without_a_logdir_the_lines_are_all(lines):
  workers = [make_stats(0, local_steps=10)]
  final_report.publish(OUTCOME, workers, STRATEGY, 1, None)
  assert not any(line.startswith(('report', 'already')) for line in lines)


@pytest.mark.parametrize(
  'path, message', [('none/r.json', 'no folder .*none'), ('', 'is a folder')]
)
def test_a_report_file_that_cannot_be_written_is_named_at_once(
  set_flags, tmp_path, path, message
):
  set_flags(f'--report_file={tmp_path / path}')
  with pytest.raises(cli.UsageError, match=message):
    final_report.check_flags()


def test_a_report_file_may_be_in_the_home_folder(
  set_flags, monkeypatch, tmp_path
):
  monkeypatch.setenv('HOME', str(tmp_path))
  set_flags('--report_file=~/r.json')
  final_report.check_flags()
  assert final_report._find_file() == str(tmp_path / 'r.json')
