"""What a sweep says of its trials, and when it writes its results."""

import csv
import sys
from unittest import mock

import pytest

from distmnist.sweeps import halving, plot, progress, tensorboard, trials
from tests.support.trials import make_repeats, make_three_trials, make_trial


def make_progress(found, folder, rungs=None):
  schedule = halving.Schedule(found, rungs or [(len(found), '')])
  return progress.Progress(schedule, str(folder))


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
  """The paths of the pictures, which are not drawn: plot_test draws some."""
  paths = []

  def write(groups, path):
    plot.check_ready()
    paths.append(path)

  monkeypatch.setattr(plot, 'write', write)
  return paths


@pytest.mark.parametrize(
  ('states', 'end'),
  [
    ([trials.WAITING, trials.WAITING], ''),
    ([trials.FAILED, trials.STOPPED], '; 1 is left to run'),
    ([trials.STOPPED, trials.FAILED, trials.RUNNING], '; 2 are left to run'),
    ([trials.FAILED, trials.DIVERGED], '; all have ended'),
  ],
)
def test_it_says_what_is_left(tmp_path, caplog, states, end):
  found = [make_trial(i, state) for i, state in enumerate(states, 1)]
  make_progress(found, tmp_path).say_start(2)
  assert caplog.messages == [
    f'{len(found)} trials in {tmp_path}, 2 at a time{end}'
  ]


def test_an_end_is_said_and_in_the_results_at_once(
  tmp_path, caplog, monkeypatch
):
  monkeypatch.setattr(tensorboard, 'Writer', mock.Mock())
  found = make_three_trials()
  for trial in found:
    trial.folder = str(tmp_path)
  found[1].cause = 'no memory; a long tail'
  shown = make_progress(found, tmp_path, [(3, ''), (1, '')])
  shown.note(found[0], 0)
  shown.note(found[1], 0)
  assert caplog.messages == [
    '3 of 3: trial 01 done after 1.2 s: learning_rate=0.1'
    ' strategy=easgd (rung 1 of 2): validation accuracy 0.9000',
    '3 of 3: trial 02 failed after 1.2 s: learning_rate=0.01'
    ' strategy=easgd (rung 1 of 2): no memory',
  ]
  with open(tmp_path / progress.CSV, newline='') as file:
    assert len(list(csv.DictReader(file))) == 3


def test_nothing_is_shown_of_trials_that_never_ran(tmp_path, capsys):
  make_progress([make_trial(1, trials.WAITING)], tmp_path).show()
  assert capsys.readouterr() == ('', '')
  assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_that_is_said_before_the_first_trial(
  tmp_path, monkeypatch, caplog
):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  found = [make_trial(1, trials.WAITING)]
  make_progress(found, tmp_path).say_start(1)
  _, line = caplog.messages
  assert 'distmnist[plots]' in line and '\n' not in line
  make_progress(make_three_trials(), tmp_path).show()
  assert [path.name for path in tmp_path.iterdir()] == ['results.csv']


def test_with_repeats_each_trial_is_in_a_file_and_the_best_is_a_mean(
  tmp_path, capsys, caplog
):
  found = make_repeats((0.9, 0.88), (0.899, 0.88))
  schedule = halving.Schedule(found, [(2, '')], repeats=2)
  progress.Progress(schedule, str(tmp_path)).show()
  assert len(capsys.readouterr().out.splitlines()) == 3
  *_, best, rival, _ = caplog.messages
  assert 'trials 01-02, --rate=0.1: 0.8900 ± 0.0141 (n = 2)' in best
  assert 'trials 03-04' in rival
  for name, num_rows in (progress.CSV, 2), (progress.TRIALS_CSV, 4):
    with open(tmp_path / name, newline='') as file:
      assert len(list(csv.DictReader(file))) == num_rows


def test_where_a_seed_of_each_has_diverged_none_is_best(
  tmp_path, capsys, caplog
):
  found = make_repeats((0.9, None), (0.8, None))
  for trial in found[1::2]:
    trial.state = trials.DIVERGED
  schedule = halving.Schedule(found, [(2, '')], repeats=2)
  progress.Progress(schedule, str(tmp_path)).show()
  said = [r.message for r in caplog.records if 'sweeps' in r.name]
  assert len(said) == 1 and str(tmp_path / progress.CSV) in said[0]


def test_the_best_is_named_with_its_flags(tmp_path, capsys, caplog, drawn):
  make_progress(make_three_trials(), tmp_path).show()
  assert drawn == [str(tmp_path / progress.PLOT)]
  assert len(capsys.readouterr().out.splitlines()) == 4
  *_, best, last = caplog.messages
  assert best == (
    'best by validation accuracy: trial 03, --learning_rate=1 --strategy=ssp'
  )
  assert last.startswith(f'results in {tmp_path}/results.csv')


@pytest.mark.parametrize(
  ('others', 'num_said'),
  [
    ([trials.WAITING, trials.STOPPED], 0),  # Of an interrupted sweep.
    ([trials.FAILED, trials.WAITING], 0),
    ([trials.FAILED, trials.DIVERGED], 1),
    ([], 1),
  ],
)
def test_of_one_result_the_best_is_named_once_all_have_ended(
  tmp_path, caplog, others, num_said
):
  found = [make_trial(1, trials.DONE, 0.9)]
  for i, state in enumerate(others, 2):
    found.append(make_trial(i, state, learning_rate=f'{i}', strategy='ssp'))
  make_progress(found, tmp_path).show()
  assert sum('best by' in line for line in caplog.messages) == num_said


def test_there_is_no_picture_without_a_result(tmp_path, drawn):
  found = [make_trial(1, trials.STOPPED), make_trial(2, trials.WAITING)]
  make_progress(found, tmp_path).show()
  assert [path.name for path in tmp_path.iterdir()] == ['results.csv']
  assert not drawn


def test_a_best_that_has_seen_more_examples_is_told_of(tmp_path, caplog):
  found = make_repeats((0.9,), (0.8,))
  for trial, seen in zip(found, (300_000, 30_000), strict=True):
    trial.result['examples'] = seen
  make_progress(found, tmp_path).show()
  assert '30,000 to 300,000 examples' in caplog.messages[-2]
