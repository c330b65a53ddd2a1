"""The journal: a sweep goes on with what it says, and Optuna chooses by it."""

import errno
import math
import os
import resource
import sys

import optuna
import pytest

from distmnist.common import cli
from distmnist.sweeps import journal, spec, trials

TPE = {'sampler': 'tpe'}
SPACE = ['rate=1e-4..1', 'batch_size=16..64', 'optimizer=sgd,adam']
GRID = ['rate=0.1,0.2', 'optimizer=sgd,adam']


@pytest.fixture
def open_journal(tmp_path):
  """Returns open_journal(words, flags, **settings) -> Journal."""

  def make(words=GRID, flags=(), **settings):
    asked = spec.Spec(words, list(flags), 0, 1, 'x', **settings)
    return journal.Journal(
      str(tmp_path / journal.NAME), asked, str(tmp_path / 'trials')
    )

  return make


def read_study(folder):
  backend = optuna.storages.journal.JournalFileBackend(
    str(folder / journal.NAME)
  )
  return optuna.load_study(
    study_name=None, storage=optuna.storages.JournalStorage(backend)
  )


def end(kept, trial, accuracy=None, state=trials.DONE):
  """Has a trial run and end, and saves both."""
  trial.begin()
  kept.save(trial)
  trial.state = state
  if state == trials.DONE:
    trial.results.append(
      {'validation_accuracy': accuracy, 'test_accuracy': 0.0}
    )
  kept.save(trial)


def propose(kept, number, judge):
  for _ in range(number):
    trial = kept.propose()
    end(kept, trial, judge(trial.combination))
  return kept.trials


def test_it_is_nothing_until_it_begins(open_journal, tmp_path):
  kept = open_journal()
  assert [trial.name for trial in kept.trials] == ['01', '02', '03', '04']
  assert list(tmp_path.iterdir()) == []
  kept.begin()
  assert open_journal().trials == kept.trials


def test_each_state_is_there_again_and_has_one_of_optunas(
  open_journal, tmp_path
):
  states = trials.DONE, trials.FAILED, trials.DIVERGED, trials.STOPPED
  kept = open_journal()
  kept.begin()
  for trial, state in zip(kept.trials, states, strict=True):
    end(kept, trial, 0.5, state)
  again = open_journal()
  assert again.trials == kept.trials
  assert [trial.state for trial in again.trials] == list(states)
  study = read_study(tmp_path)
  assert [trial.state.name for trial in study.trials] == [
    *('COMPLETE', 'FAIL', 'PRUNED', 'RUNNING')
  ]
  assert (study.best_value, study.metric_names) == (
    0.5,
    ['validation accuracy'],
  )


def test_who_is_retried_is_another_trial_of_optuna(open_journal, tmp_path):
  kept = open_journal()
  kept.begin()
  end(kept, kept.trials[1], None, trials.FAILED)
  again = open_journal()
  end(again, again.trials[1], 0.75)
  assert open_journal().trials[1].result['validation_accuracy'] == 0.75
  first, second = read_study(tmp_path).trials
  assert first.params == second.params
  assert (first.state.name, second.state.name) == ('FAIL', 'COMPLETE')


def test_rungs_are_steps_of_one_trial_and_a_loss_is_negated(
  open_journal, tmp_path
):
  flags, halving = ['--train_steps=8'], {'halving': 2}
  kept = open_journal(flags=flags, **halving)
  kept.begin()
  trial, other = kept.trials[:2]
  for step, mse in ((2, 0.5), (4, 0.4), (8, 0.3)):
    trial.begin()
    trial.state = trials.DONE
    trial.results.append(
      {'judged_by': '-mse', 'test_mse': mse, 'global_step': step}
    )
    kept.save(trial)
  other.results, other.state = trial.results[:1], trials.DROPPED
  kept.save(other)
  assert open_journal(flags=flags, **halving).trials == kept.trials
  first, second = read_study(tmp_path).trials
  assert first.intermediate_values == {2: -0.5, 4: -0.4, 8: -0.3}
  assert (first.value, second.value) == (-0.3, -0.5)
  assert (first.state.name, second.state.name) == ('COMPLETE', 'PRUNED')


def test_a_kill_between_two_lines_is_made_good(open_journal, tmp_path):
  kept = open_journal()
  kept.begin()
  end(kept, kept.trials[0], 0.5)
  path = tmp_path / journal.NAME
  lines = path.read_text().splitlines(keepends=True)
  for number in range(len(lines)):
    # All of the first, and a part of the next.
    path.write_text(''.join(lines[:number]) + lines[number][:7])
    again = open_journal()
    again.begin()
    assert again.trials[0].state in (
      *(trials.WAITING, trials.RUNNING, trials.DONE),
    )
  (trial,) = read_study(tmp_path).trials
  assert trial.state.name == 'COMPLETE'


def test_a_full_disk_is_one_line_and_no_loss(open_journal, tmp_path):
  kept = open_journal(SPACE, random=9, **TPE)
  kept.begin()
  end(kept, kept.propose(), 0.5)
  size = (tmp_path / journal.NAME).stat().st_size
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, old[1]))
  try:
    with pytest.raises(cli.RunError, match='journal.log cannot be written'):
      kept.propose()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
  assert open_journal(SPACE, random=9, **TPE).trials == kept.trials


@pytest.mark.parametrize('has_begun', [False, True])
def test_a_full_disk_is_one_line_where_a_sweep_goes_on(
  open_journal, tmp_path, monkeypatch, has_begun
):
  """What a kill has left open is told Optuna when the file is read again."""
  kept = open_journal(SPACE, random=9, **TPE)
  kept.begin()
  if has_begun:
    monkeypatch.setattr(kept, '_tell', lambda trial: None)
    end(kept, kept.propose(), 0.5)
  else:
    kept._study.ask(kept._make_space())
  size = (tmp_path / journal.NAME).stat().st_size
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, old[1]))
  try:
    with pytest.raises(cli.RunError, match='journal.log cannot be written'):
      open_journal(SPACE, random=9, **TPE)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
  assert open_journal(SPACE, random=9, **TPE).trials == kept.trials


@pytest.mark.parametrize('number', [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_is_told_in_the_systems_words(
  open_journal, tmp_path, monkeypatch, number
):
  open_journal().begin()

  def refuse(path, flags):
    raise OSError(number, os.strerror(number), path)

  monkeypatch.setattr(journal.files, 'no_follow', refuse)
  with pytest.raises(cli.RunError, match=os.strerror(number)) as error:
    open_journal()
  assert 'not written by a sweep' not in str(error.value)


def test_trials_of_a_sweep_that_the_journal_does_not_know_are_refused(
  open_journal, tmp_path
):
  (tmp_path / 'trials' / '01' / 'run').mkdir(parents=True)
  (tmp_path / 'trials' / 'lock').touch()
  open_journal().begin()
  (tmp_path / 'trials' / '01' / 'run' / 'checkpoint').touch()
  open_journal()
  (tmp_path / journal.NAME).write_text('')
  for _ in range(2):
    with pytest.raises(cli.UsageError, match='trials/01/run.* remove') as error:
      open_journal()
    assert '\n' not in str(error.value)
    (tmp_path / journal.NAME).unlink(missing_ok=True)


def test_a_lock_that_a_kill_has_left_is_not_waited_for(open_journal, tmp_path):
  open_journal().begin()
  lock = optuna.storages.journal.JournalFileSymlinkLock(
    str(tmp_path / journal.NAME)
  )
  lock.acquire()
  kept = open_journal()
  end(kept, kept.trials[0], 0.5)  # Optuna would wait for half a minute.
  with pytest.raises(RuntimeError):
    lock.release()


@pytest.mark.parametrize('text', ['{\n', '[]\n', '{"op_code":4}\n', 'x\ny\n'])
def test_a_file_that_no_sweep_has_written_is_one_line(
  open_journal, tmp_path, text
):
  (tmp_path / journal.NAME).write_text(text)
  with pytest.raises(cli.RunError, match='cannot be read .*; give') as error:
    open_journal()
  assert '\n' not in str(error.value)


def test_a_link_to_another_file_is_not_followed(open_journal, tmp_path):
  (tmp_path / 'victim').write_text('x')
  (tmp_path / journal.NAME).symlink_to(tmp_path / 'victim')
  with pytest.raises(cli.RunError, match='cannot be read'):
    open_journal()
  assert (tmp_path / 'victim').read_text() == 'x'


def test_another_sweep_is_refused(open_journal):
  open_journal().begin()
  for words, settings, name in (
    (GRID[:1], {}, 'words'),
    (GRID, {'flags': ['--x=1']}, 'flags'),
    (GRID, {'zip': True}, 'zip'),
  ):
    with pytest.raises(cli.UsageError, match=f'another sweep: its {name} were'):
      open_journal(words, **settings)


@pytest.mark.parametrize(
  ('old', 'new'),
  [
    ('"trial":"01"', '"trial":"07"'),
    ('"trial":"01"', '"trial":"../01"'),
    ('"trial":"01"', '"trial":"02"'),
    ('"rate":0,', '"rate":1,'),
    ('\\"0.1\\"', '\\"0.1 --logdir=/\\"'),
    ('"state":"done"', '"state":"won"'),
    ('"results":[', '"results":[{},'),
    ('"secs":0.0', '"secs":-1'),
  ],
)
def test_a_value_that_no_sweep_has_written_is_one_line(
  open_journal, tmp_path, old, new
):
  kept = open_journal()
  kept.begin()
  end(kept, kept.trials[0], 0.5)
  path = tmp_path / journal.NAME
  text = path.read_text()
  assert old in text
  path.write_text(text.replace(old, new))
  with pytest.raises(cli.RunError, match='journal.log .*; give') as error:
    open_journal()
  assert '\n' not in str(error.value)


def test_a_problem_that_has_changed_since_a_sweep_began_is_told(
  open_journal, tmp_path, caplog
):
  path = tmp_path / 'mine.py'

  def sweep_with(source):
    path.write_text(source)
    caplog.clear()
    open_journal(flags=[f'--problem={path}']).begin()
    return 'has changed since the sweep in' in caplog.text

  found = [sweep_with(source) for source in ('x = 1', 'x = 1', 'x = 2')]
  assert found == [False, False, True]
  assert sweep_with('x = 2')  # Trials of the first file are still among them.
  assert not sweep_with('x = 1')


@pytest.mark.slow
def test_it_goes_where_the_best_trials_are(open_journal):
  def judge(combination):
    far = abs(math.log10(float(combination['rate'])) + 2)
    return 1 - far / 10 - 0.3 * (combination['optimizer'] == 'sgd')

  kept = open_journal(SPACE, random=30, **TPE)
  kept.begin()
  found = propose(kept, 30, judge)
  scores = [judge(trial.combination) for trial in found]
  assert sum(scores[15:]) / 15 > sum(scores[:10]) / 10 + 0.1
  assert max(scores) > 0.95
  for trial in found:  # within their choices, and of four digits
    rate, size, optimizer = trial.combination.values()
    assert 1e-4 <= float(rate) <= 1 and len(rate.strip('0.').split('e')[0]) <= 5
    assert 16 <= int(size) <= 64
    assert optimizer in ('sgd', 'adam')


@pytest.mark.slow
def test_a_sweep_that_goes_on_proposes_what_it_would_have(
  open_journal, tmp_path
):
  def run(*parts):
    (tmp_path / journal.NAME).unlink(missing_ok=True)
    for number in parts:
      kept = open_journal(SPACE, random=12, **TPE)
      kept.begin()
      found = propose(kept, number, lambda values: float(values['rate']))
    return [trial.combination for trial in found]

  whole = run(12)
  assert len({str(values) for values in whole}) == 12
  assert run(5, 7) == whole


def test_each_combination_that_is_proposed_has_all_its_seeds(open_journal):
  settings = {'flags': ['--seed=5'], 'random': 4, 'repeats': 3, **TPE}
  kept = open_journal(SPACE, **settings)
  kept.begin()
  propose(kept, 7, lambda values: float(values['rate']))
  again = open_journal(SPACE, **settings)
  assert again.trials == kept.trials
  found = propose(again, 5, lambda values: float(values['rate']))
  assert [trial.seed for trial in found] == 4 * [5, 6, 7]
  values = [str(trial.combination) for trial in found]
  assert values[::3] == values[1::3] == values[2::3]
  assert len(set(values)) == 4


def test_a_seed_with_another_combination_is_no_sweeps(open_journal, tmp_path):
  kept = open_journal(SPACE, random=4, repeats=2, **TPE)
  kept.begin()
  propose(kept, 2, lambda values: 0.5)
  path = tmp_path / journal.NAME
  text, size = path.read_text(), kept.trials[1].combination['batch_size']
  assert f'"batch_size":{size}' in text  # Of the second, which was not asked.
  other = f'"batch_size":{int(size) % 48 + 16}'
  path.write_text(text.replace(f'"batch_size":{size}', other))
  with pytest.raises(cli.RunError, match="in trial '02'"):
    open_journal(SPACE, random=4, repeats=2, **TPE)


def test_of_a_trial_that_runs_or_was_lost_no_result_is_needed(open_journal):
  kept = open_journal(SPACE, random=9, **TPE)
  kept.begin()
  for state in trials.FAILED, trials.DIVERGED, trials.STOPPED:
    end(kept, kept.propose(), None, state)
  assert kept.propose().number == 4


def test_without_optuna_a_sweep_is_refused_in_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'optuna', None)
  with pytest.raises(cli.UsageError, match='needs Optuna') as error:
    journal.check_ready()
  assert '\n' not in str(error.value) and 'distmnist[sweep]' in str(error.value)
