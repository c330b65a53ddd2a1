"""A task that is killed at the end of a run, and begun again by hand."""

import json
import signal

import pytest

from tests.support.background import wait_until
from tests.support.runner import read_report, wait_for_line

_PROBLEM = """
import pathlib
import threading
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from distmnist.nn import layers

SPARSE = flags.DEFINE_bool('sparse', False, 'A table of rows.')
HERE = pathlib.Path(__file__).parent


class Reader:
  num_examples = 300

  def __init__(self, is_test):
    self._is_test = is_test

  def read(self, indices):
    if self._is_test and max(indices) >= 200:
      print('the test is read', flush=True)
      while not (HERE / 'go_on').exists():
        threading.Event().wait(0.05)
    x = np.asarray(indices) % 50
    return x, (x % 2).astype(np.float32)


def load(split):
  return Reader(split == 'test')


def build(x, is_training):
  if SPARSE.value:
    return tf.reduce_sum(layers.embedding(x, 50, 4, 'rows'), 1)
  return tf.reduce_sum(tf.gather(tf.get_variable('rows', [50, 4]), x), 1)


def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
"""

CHIEF, WORKER, PS = ('worker', 0), ('worker', 1), ('ps', 0)


class Run:
  """Two workers and a ps, each started by hand."""

  def __init__(self, cluster, tasks, folder):
    self._cluster, self._tasks, self.folder = cluster, tasks, folder
    (folder / 'slow_test.py').write_text(_PROBLEM)
    self.logdir = folder / 'run'
    self._go_on = folder / 'go_on'
    self.now, self.codes = {}, {}

  def start(self, *members, flags=()):
    for member in members:
      self.now[member] = self._cluster.start(
        *member,
        f'--problem={self.folder}/slow_test.py',
        *('--optimizer=adagrad', '--train_steps=8', f'--logdir={self.logdir}'),
        *('--start_timeout_secs=25', *self._flags(flags)),
      )

  def _flags(self, flags):
    self._given = flags or getattr(self, '_given', ())
    return self._given

  def let_evaluate(self):
    self._go_on.touch()

  def kill(self, member):
    """Kills a task, unless it has left already."""
    task = self.now[member]
    if task.code is None:
      self._tasks.signal(task, signal.SIGKILL)
      self._tasks.wait(task)

  def wait(self, *members):
    return self._tasks.wait(*(self.now[member] for member in members))

  def reach(self, phase):
    chief = self.now[CHIEF]
    if phase == 'evaluation':
      wait_for_line(chief, 'the test is read')
      return
    self.let_evaluate()
    if phase == 'report':
      # It is about to be written, or has just been.
      wait_until(lambda: 'test loss' in chief.output, lambda: chief.output)
    else:
      assert self.wait(CHIEF) == [0]


@pytest.fixture
def run(make_real_cluster, tasks, tmp_path):
  return Run(make_real_cluster(1, 2), tasks, tmp_path)


def check_report(logdir, not_heard_of=()):
  report = read_report(logdir)
  assert report['global_step'] == 8
  if not_heard_of is not None:
    assert report['workers_not_heard_of'] == [*not_heard_of]
  assert 0 < report['test_metrics']['loss'] < 2
  assert report['local_steps'] == 8
  return report


@pytest.mark.daily(but=['member0-evaluation'])
@pytest.mark.slow
@pytest.mark.parametrize('phase', ['evaluation', 'report', 'after the end'])
@pytest.mark.parametrize('member', [CHIEF, WORKER, PS])
def test_what_is_killed_at_the_end_is_begun_again(run, phase, member):
  run.start(PS, CHIEF, WORKER)
  run.reach(phase)
  run.kill(member)
  # With the chief gone, it waits for as long as for one that has not begun.
  soon = ['--start_timeout_secs=6'] if phase == 'after the end' else []
  run.start(member, flags=soon)
  again = run.now[member]
  run.let_evaluate()
  others = [each for each in (CHIEF, WORKER, PS) if each != member]
  assert run.wait(*others) == [0, 0]
  assert run.wait(member) == [0]
  assert 'firewall' not in again.output
  if member != CHIEF and phase != 'evaluation':
    assert 'has ended at step 8' in again.output
  # The chief may have made all steps. If it was killed before its report, it
  # had taken the message of the other worker, which keeps no record of none.
  is_idle = member == CHIEF and 'step ' not in run.now[WORKER].output
  check_report(run.logdir, not_heard_of=None if is_idle else [])


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('member', [CHIEF, WORKER])
def test_one_killed_while_a_table_is_evaluated_is_begun_again(run, member):
  run.start(PS, CHIEF, WORKER, flags=['--sparse'])
  run.reach('evaluation')
  run.kill(member)
  run.start(member)
  run.let_evaluate()
  assert run.wait(PS, CHIEF, WORKER) == [0, 0, 0]
  # The chief that was killed had taken the message of the other worker.
  check_report(run.logdir, not_heard_of=[1] if member == CHIEF else [])


@pytest.mark.daily
@pytest.mark.slow
def test_a_table_is_evaluated_anew_once_its_ps_is_lost(run):
  run.start(PS, CHIEF, WORKER, flags=['--sparse'])
  run.reach('evaluation')
  run.kill(PS)
  run.let_evaluate()
  # The chief goes on alone: the checkpoint has the rows.
  assert run.wait(CHIEF, WORKER) == [0, 0]
  assert 'evaluates' in run.now[CHIEF].output
  check_report(run.logdir)


@pytest.mark.daily
@pytest.mark.slow
def test_a_report_of_a_chief_alone_is_that_of_one_with_its_ps(run):
  # In lock-step both workers make steps, however late one of them begins.
  run.start(PS, CHIEF, WORKER, flags=['--strategy=sync_sgd'])
  run.let_evaluate()
  assert run.wait(PS, CHIEF, WORKER) == [0, 0, 0]
  path = run.logdir / 'report.json'
  before = json.loads(path.read_text())
  path.unlink()
  run.start(CHIEF)
  assert run.wait(CHIEF) == [0]
  after = read_report(run.logdir)
  changed = {name for name in before if before[name] != after[name]}
  # What only the process that trained knows.
  of_the_process = {'final_loss', 'examples_per_sec', 'total_secs'}
  # A record has its times in fewer digits.
  assert changed - of_the_process <= {'train_secs', 'workers'}
  assert after['train_secs'] == pytest.approx(before['train_secs'])
  for old, new in zip(before['workers'], after['workers'], strict=True):
    for name in set(old) - {'lives'}:
      if name.endswith('_secs'):
        assert new[name] == pytest.approx(old[name], rel=1e-6)
      else:
        assert new[name] == old[name]


@pytest.mark.daily
@pytest.mark.slow
def test_a_run_that_has_stopped_early_has_ended_as_well(run):
  flags = [
    *('--train_steps=1000', '--learning_rate=1e-20'),
    *('--validation_steps=2', '--early_stopping_patience=1'),
  ]
  run.start(PS, CHIEF, WORKER, flags=flags)
  run.let_evaluate()
  assert run.wait(PS, CHIEF, WORKER) == [0, 0, 0]
  path = run.logdir / 'report.json'
  before = json.loads(path.read_text())
  assert before['best_step'] < before['global_step'] < 1000
  path.unlink()
  run.start(CHIEF, WORKER)
  assert run.wait(CHIEF, WORKER) == [0, 0]
  assert 'nothing is left to do' in run.now[WORKER].output
  after = read_report(run.logdir)
  same = 'best_step', 'global_step', 'local_steps', 'test_metrics'
  assert {n: after[n] for n in same} == {n: before[n] for n in same}
