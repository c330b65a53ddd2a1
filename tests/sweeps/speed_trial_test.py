import json

import pytest

from distmnist.common import child_program
from distmnist.sweeps import speed_trial


@pytest.mark.parametrize(
  ('samples', 'secs', 'speed'),
  [
    ({}, 1, None),
    ({'w': []}, 1, None),
    ({'w': [(0, 100)]}, 0, None),
    ({'w': [(0, 100), (1, 300)]}, 2, None),
    ({'w': [(0, 100), (1, 300), (2, 500)]}, 2, 200),
    # One step takes longer.
    ({'w': [(0, 100), (3, 100)]}, 2, None),
    ({'w': [(0, 100), (3, 100), (5, 200)]}, 2, 20),
    # Nothing is trained yet.
    ({'w': [(0, 0), (10, 100), (12, 500)]}, 2, 200),
    ({'w': [(0, 1), (2, 201)], 'v': [(5, 1), (6, 2)]}, 2, None),
    ({'w': [(0, 1), (2, 201)], 'v': [(5, 1), (8, 301)]}, 2, 200),
  ],
)
def test_the_speed_is_that_of_all_workers_once_all_were_seen(
  samples, secs, speed
):
  assert speed_trial.compute_speed(samples, secs) == speed


def test_samples_are_those_of_metrics_jsonl(tmp_path):
  folder = tmp_path / 'metrics' / 'worker_0'
  folder.mkdir(parents=True)
  lines = [
    {'kind': 'start', 'time': 1},
    {'kind': 'sample', 'time': 2, 'examples': None},
    {'kind': 'sample', 'time': 3, 'examples': 7},
  ]
  text = '\n'.join(map(json.dumps, lines))
  (folder / 'metrics.jsonl').write_text(f'{text}\n{{"kind": "samp')
  assert speed_trial.read_samples(str(tmp_path), 2) == {
    'worker 0': [(3, 7)],
    'worker 1': [],
  }


@pytest.fixture
def launch(tmp_path, monkeypatch):
  """Puts a program of the test in place of launch."""
  monkeypatch.setattr(child_program, 'SORTED_FLAGS', 'a_launch')
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  return tmp_path / 'a_launch.py'


PROGRAM = """
import json, os, signal, sys
flags = dict(word[2:].split('=', 1) for word in json.load(sys.stdin))
print(flags)
folder = os.path.join(flags['logdir'], 'metrics', 'worker_0')
os.makedirs(folder)
with open(os.path.join(folder, 'metrics.jsonl'), 'w') as file:
  for t in range(5):
    line = {'kind': 'sample', 'time': t, 'examples': 100 * t, 'unit': 'rows'}
    file.write(json.dumps(line) + '\\n')
signal.sigwait([signal.SIGTERM])
"""


def test_a_trial_is_a_launch_that_is_ended_once_it_was_measured(
  launch, tmp_path
):
  launch.write_text(
    'import signal\n'
    'signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n' + PROGRAM
  )
  folder = tmp_path / 'trials'
  folder.mkdir()
  runner = speed_trial.Runner(['--a=1'], str(folder), 1, 2, [])
  assert runner.measure(['--b=2']) == (100.0, '')
  assert runner.unit == 'rows'
  said = (folder / 'trial_1' / 'launch.log').read_text()
  assert "'a': '1', 'b': '2', 'logdir'" in said
  assert "'log_secs': '0.5'" in said


@pytest.mark.parametrize(
  ('program', 'cause'),
  [
    (
      'import sys; print("distmnist.launch: error: no data"); sys.exit(1)',
      'no data',
    ),
    ('print("bye")', 'bye'),
    ('', 'it said nothing'),
  ],
)
def test_a_trial_that_does_not_train_says_why(launch, tmp_path, program, cause):
  launch.write_text(program)
  runner = speed_trial.Runner([], str(tmp_path), 1, 2, [])
  assert runner.measure([]) == (None, cause)


def test_after_a_signal_nothing_is_tried(tmp_path):
  runner = speed_trial.Runner([], str(tmp_path), 1, 2, [2])
  assert runner.measure([]) == (None, 'stopped')
  assert list(tmp_path.iterdir()) == []
