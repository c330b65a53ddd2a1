"""trials: what is known of a trial, on the disk too."""

import json
import os

import pytest

from distmnist.sweeps import results, trials


@pytest.fixture
def trial(tmp_path):
  (found,) = trials.make_trials([{'a': '1'}], str(tmp_path))
  found.begin()
  return found


def write_report(trial, **numbers):
  folder = trial.logdir
  os.makedirs(folder, exist_ok=True)
  with open(f'{folder}/report.json', 'w') as file:
    json.dump(numbers, file)


def write_log(trial, text):
  with open(trial.log, 'w') as file:
    file.write(text)


def test_names_sort_as_their_numbers(tmp_path):
  found = trials.make_trials([{'a': str(i)} for i in range(120)], 'x')
  names = [trial.name for trial in found]
  assert names[:2] == ['001', '002'] and names[-1] == '120'
  assert found[0].logdir == 'x/001/run'


def test_each_seed_of_a_combination_has_a_trial():
  found = trials.make_trials([{'a': '1'}, {'a': '2'}], 'x', [7, 8])
  assert [(trial.name, trial.repeat) for trial in found] == [
    *(('01', 0), ('02', 1), ('03', 0), ('04', 1))
  ]
  assert found[3].flags == {'a': '2', 'seed': '8'}
  assert found[3].combination == {'a': '2'}
  (alone,) = trials.make_trials([{'a': '1'}], 'x')
  assert alone.flags == {'a': '1'}


def test_what_is_known_of_a_trial_is_taken_over(trial):
  write_report(trial, test_accuracy=0.5)
  trial.end(0, 1.5, 0)
  again = trials.Trial(1, '01', {}, trial.folder)
  again.take_outcome(json.loads(json.dumps(trial.outcome)))
  assert again.outcome == trial.outcome
  assert (again.state, again.secs) == (trials.DONE, 1.5)


@pytest.mark.parametrize(
  'value, problem',
  [
    ({'state': 'won'}, "state 'won'"),
    ({'state': ['done']}, r"state \['done'\]"),
    ({'secs': -1}, 'secs -1'),
    ({'secs': float('nan')}, 'secs nan'),
    ({'secs': '1'}, "secs '1'"),
    ({'secs': float('inf')}, 'secs inf'),
    ({'cause': 3}, 'cause 3'),
    ({'cause': 'a\nb'}, r"cause 'a\\nb'"),
    ({'results': {}}, 'results {}'),
    ({'results': [{}]}, r'results \[{}\]'),
    ({'results': [{'test_accuracy': 'all'}]}, 'results '),
    ({'results': [{'folder': 1}]}, 'results '),
    ({'folder': '/'}, 'outcome '),
  ],
)
def test_an_outcome_that_no_sweep_has_written_is_none(trial, value, problem):
  with pytest.raises(ValueError, match=problem):
    trial.take_outcome(trial.outcome | value)
  with pytest.raises(ValueError, match='outcome'):
    trial.take_outcome([1])


def test_what_a_problem_is_judged_by_is_taken_of_its_report(trial):
  write_report(
    trial,
    judged_by='-mse',
    test_metrics={'mse': 0.5, 'mae': 0.6},
    validation_metrics={'mse': 0.4},
  )
  trial.end(0, 1, 0)
  assert trial.state == trials.DONE
  assert trial.result['judged_by'] == '-mse'
  assert (trial.result['validation_mse'], trial.result['test_mse']) == (
    0.4,
    0.5,
  )
  assert 'test_mae' not in trial.result
  assert results.read_metric(trial.results) == ('validation_mse', -1)


def test_each_run_adds_a_result(trial):
  write_report(trial, test_accuracy=0.5, final_loss=0.1, workers=[1])
  trial.end(0, 1.5, 0)
  trial.begin()
  # Its report was that of the run before.
  assert not trial.has_ended_unseen()
  write_report(trial, test_accuracy=0.75, examples=200)
  trial.end(0, 1.0, 0)
  assert (trial.state, trial.secs) == (trials.DONE, 2.5)
  assert [r['test_accuracy'] for r in trial.results] == [0.5, 0.75]
  assert trial.result == {
    'validation_accuracy': None,
    'test_accuracy': 0.75,
    'final_loss': None,
    'global_step': None,
    'examples_per_sec': None,
    'examples': 200,
    'staleness_mean': None,
    'bytes_pulled': None,
    'bytes_pushed': None,
  }


def test_an_end_that_nobody_noted_is_found(trial):
  assert not trial.has_ended_unseen()
  write_report(trial, test_accuracy=0.5)
  assert trial.has_ended_unseen()
  trial.take_report()
  assert (trial.state, trial.result['test_accuracy']) == (trials.DONE, 0.5)
  assert not trial.has_ended_unseen()


def test_an_end_without_a_report_is_a_failure(trial):
  trial.end(0, 1.0, 0)
  assert trial.state == trials.FAILED
  assert 'it has left no report' in trial.cause


def test_a_loss_that_is_no_number_is_told_from_other_failures(trial):
  write_log(
    trial,
    'step 1/9  loss 3\n'
    'distmnist.train: error: the loss is nan: the training has diverged; try\n',
  )
  trial.end(1, 1.0, 0)
  assert trial.state == trials.DIVERGED
  write_log(trial, 'distmnist.train: error: disk full\n')
  trial.end(1, 1.0, 0)
  assert (trial.state, trial.cause) == (trials.FAILED, 'disk full')


@pytest.mark.parametrize('code', [130, 143])
def test_who_left_on_a_signal_is_to_run_again(trial, code):
  trial.end(code, 1.0, 0)
  assert trial.state == trials.STOPPED


@pytest.mark.parametrize(
  'log, code, cause',
  [
    ('', 1, 'exit code 1'),
    ('step 1\n', -9, 'killed by SIGKILL'),
    (
      'Traceback\n  x\nValueError: boom\n',
      70,
      'ValueError: boom (exit code 70)',
    ),
    ('distmnist.train: error: a\nI leave\n', 1, 'a'),
    ('my-loop.py: error: a\n', 1, 'a'),
    ('srun: error: a\n', 1, 'srun: error: a (exit code 1)'),
    (
      'distmnist.launch: the last lines of worker 1:\n'
      '  | step 3\n  | distmnist.train: error: the loss is nan\n'
      'distmnist.launch: error: worker 1 (x:1) failed first: exit code 1\n',
      1,
      'the loss is nan',
    ),
    (
      'distmnist.launch: error: ps 0 (x:1) failed first: killed by SIGKILL\n',
      137,
      'distmnist.launch: error: ps 0 (x:1) failed first: killed by SIGKILL '
      '(exit code 137)',
    ),
  ],
)
def test_the_cause_is_the_last_error(tmp_path, log, code, cause):
  path = tmp_path / 'log'
  path.write_text(log)
  assert trials.find_cause(str(path), 0, code) == cause


def test_the_cause_is_not_that_of_an_earlier_run(tmp_path):
  text = 'distmnist.train: error: old\n'
  path = tmp_path / 'log'
  path.write_text(text)
  assert trials.find_cause(str(path), len(text), 3) == 'exit code 3'
