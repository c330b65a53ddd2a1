"""report: what workers did, as a message, as numbers, as lines, as a file."""

import collections
import errno
import json
import os

import pytest

from distmnist.common import cli, files
from distmnist.logdir import report, report_text
from tests.support.reports import compose, make_workers


def test_stats_survive_the_trip_through_json():
  for stats in make_workers():
    message = json.loads(json.dumps(stats.to_message()))
    assert report.WorkerStats.from_message(message) == stats


def test_the_first_run_is_in_no_mean():
  assert make_workers()[0].step_secs == pytest.approx(0.8 / 4)


@pytest.mark.parametrize('local_steps', [0, 1])
def test_a_worker_with_no_timed_step_divides_by_one(local_steps):
  assert report.WorkerStats(0, local_steps).step_secs == 0


def test_staleness_is_over_all_steps_of_all_workers():
  mean, largest = report.summarize_staleness(make_workers())
  assert mean == pytest.approx((3 * 0 + 2 * 1 + 1 * 1 + 2 * 4) / 8)
  assert largest == 4


def test_staleness_of_none_is_none():
  assert report.summarize_staleness([report.WorkerStats(0)]) == (None, None)
  assert report.summarize_staleness([]) == (None, None)


def test_compose_sums_the_workers_and_keeps_the_rest():
  found = compose()
  assert found['flags'] == {}
  assert found['test_accuracy'] == 0.91239
  assert (found['examples'], found['local_steps']) == (80, 8)
  assert (found['staleness_mean'], found['staleness_max']) == (11 / 8, 4)
  assert [row['worker'] for row in found['workers']] == [0, 1]
  assert found['workers'][1]['staleness'] == {1: 1, 4: 2}
  assert found['workers'][1]['step_secs'] == pytest.approx(0.45)
  assert 'gradients_dropped' not in found['workers'][0]


def test_where_the_stale_are_dropped_they_are_counted():
  rows = compose(max_staleness=0)['workers']
  assert [row['gradients_dropped'] for row in rows] == [2, 3]


def test_write_replaces_the_file_as_a_whole(tmp_path):
  (tmp_path / 'report.json').write_text('of an earlier run')
  path = str(tmp_path / 'report.json')
  assert report.write(compose(), path) == path
  found = json.loads((tmp_path / 'report.json').read_text())
  assert found['local_steps'] == 8
  assert found['workers'][0]['staleness'] == {'0': 3, '1': 2}
  assert [p.name for p in tmp_path.iterdir()] == ['report.json']


def make_lives():
  """Worker 0 was resumed, and then lost a ps; worker 1 was killed once."""
  return [
    report.WorkerStats(
      *(0, 60, 600, 6.0, 50, 60),
      staleness=collections.Counter({0: 60}),
      life='a',
      sessions=[[0, 60]],
      has_ended=True,
    ),
    report.WorkerStats(
      *(0, 50, 500, 4.0, 50, 50),
      staleness=collections.Counter({0: 49, 1: 1}),
      life='b',
      sessions=[[60, 90], [80, 100]],
    ),
    report.WorkerStats(1, 58, 580, 5.0, 57, life='c', sessions=[[0, 65]]),
    report.WorkerStats(
      1, 40, 400, 5.0, 39, life='d', sessions=[[60, 96], [81, 100]]
    ),
  ]


def test_what_is_no_number_is_null_as_json_knows_no_nan(tmp_path):
  metrics = {'auc': float('nan'), 'sums': [float('inf'), 0.5]}
  path = str(tmp_path / 'report.json')
  report.write({'global_step': 1, 'test_metrics': metrics}, path)
  with open(path) as file:
    assert json.load(file, parse_constant=pytest.fail) == {
      'global_step': 1,
      'test_metrics': {'auc': None, 'sums': [None, 0.5]},
    }


def test_a_row_is_of_all_lives_and_has_each():
  found = compose(lives=make_lives(), max_staleness=0)
  assert (found['examples'], found['local_steps']) == (2080, 208)
  chief, worker = found['workers']
  assert (chief['examples'], chief['pushes']) == (1100, 110)
  assert chief['staleness'] == {0: 109, 1: 1}
  assert chief['gradients_dropped'] == 1
  assert chief['step_secs'] == pytest.approx(10.0 / 100)
  first, second = chief['lives']
  assert (first['life'], first['examples'], first['has_ended']) == (
    ('a', 600, True)
  )
  assert (first['first_step'], first['last_step']) == (0, 60)
  assert (second['first_step'], second['last_step']) == (60, 100)
  assert second['gradients_dropped'] == 1
  assert [life['life'] for life in worker['lives']] == ['c', 'd']
  assert found['first_step'] == 0
  lines = report_text.format_lines(found)
  assert (
    'worker 0            110 local steps, 100.00 ms/step, 1 gradients dropped'
    ', in 2 lives' in lines
  )
  [told] = [line for line in lines if line.startswith('lives ')]
  assert '4 processes of 2 workers' in told
  assert not [line for line in lines if line.startswith('counted')]


def test_a_rate_is_of_all_lives_that_timed_it():
  lives = make_lives()
  for stats, images in zip(lives, (900, 600, 7, 7), strict=True):
    stats.timed_examples_of_all = images
  assert compose(lives=lives)['examples_per_sec'] == (900 + 600) / (6 + 4)
  # The last one made a single run, or none.
  lives[1].train_secs = lives[1].timed_examples_of_all = 0
  assert compose(lives=lives)['examples_per_sec'] == 900 / 6
  assert compose(lives=lives[1:])['examples_per_sec'] is None


def test_steps_lost_are_those_of_who_saw_most():
  found = compose(lives=make_lives())
  # The chief was at 90 when the center went back to 80. Worker 1 was at 96
  # then, and its first life at 65 when the run was resumed from 60.
  assert found['recoveries'] == 1
  assert found['steps_lost'] == (65 - 60) + (96 - 81)


def test_a_disk_that_is_full_is_one_line_and_leaves_the_old_report(
  tmp_path, monkeypatch
):
  path = report.write({'global_step': 1}, str(tmp_path / 'report.json'))

  def refuse(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(files.os, 'fsync', refuse)
  with pytest.raises(cli.RunError) as caught:
    report.write(compose() | {'flags': {'logdir': 'logs/run'}}, path)
  assert caught.value.exit_code == 1
  assert str(caught.value) == (
    f'{path} cannot be written: No space left on device; the training is done'
    ' and its checkpoint of step 8 saved: make room, and the same command'
    ' writes the report'
  )
  with pytest.raises(cli.RunError, match='nothing of it kept, without a'):
    report.write(compose(), path)
  assert os.listdir(tmp_path) == ['report.json']
  with open(path) as file:
    assert json.load(file) == {'global_step': 1}


def make_stats(worker, local_steps, **rows):
  stats = report.WorkerStats(worker, local_steps=local_steps)
  stats.rows.update({f'rows/{name}': n for name, n in rows.items()})
  return stats


LIVES = [
  make_stats(
    *(0, 2),
    **{'ids': 200, 'different': 60, 'of_ps_0': 40, 'of_ps_1': 20},
    bytes_of_user=3_000_000,
  ),
  make_stats(1, 2, ids=200, different=40, of_ps_0=40, bytes_of_ad=500_000),
  report.WorkerStats(2),  # It made no step.
]


def test_a_step_is_one_of_all_workers_in_the_mean():
  assert report.compose_rows(LIVES) == {
    'ids_per_step': 100,
    'rows_per_step': 25,
    'share_different': 0.25,
    'bytes_by_table': {'user': 3_000_000, 'ad': 500_000},
    'rows_by_ps': [80, 20],
  }


def test_it_is_three_lines():
  assert list(report.format_row_lines(report.compose_rows(LIVES))) == [
    ('rows a step', '100 ids, of which 25 (25%) are different'),
    ('rows by ps', 'ps 0 80%, ps 1 20%'),
    ('tables', 'user 3.0 MB, ad 0.5 MB'),
  ]


def test_of_many_tables_the_largest_are_named():
  many = {f'bytes_of_{i}': i * 1_000_000 for i in range(8)}
  found = report.compose_rows([make_stats(0, 1, ids=1, different=1, **many)])
  [*_, (label, text)] = report.format_row_lines(found)
  assert label == 'tables'
  assert text == '7 7.0 MB, 6 6.0 MB, 5 5.0 MB, 4 4.0 MB, 3 3.0 MB, and 3 more'


def test_without_tables_nothing_is_said():
  assert report.compose_rows([report.WorkerStats(0, local_steps=3)]) is None
  assert list(report.format_row_lines(None)) == []


def test_counts_survive_the_trip_through_json():
  message = LIVES[0].to_message()
  found = report.WorkerStats.from_message(message)
  assert found.rows == LIVES[0].rows
  del message['rows']  # As from an earlier version.
  assert report.WorkerStats.from_message(message).rows == collections.Counter()
