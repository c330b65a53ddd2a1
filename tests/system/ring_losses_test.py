"""A ring loses workers, and goes on as if nothing had been.

Real tasks, killed and started again by the launcher. The run without a fault
says what the weights must be in the end, to the last bit.
"""

import collections
import functools
import re
import signal

import numpy as np
import pytest

from tests.support.runner import SMALL, import_benchmark
from tests.system.shards_stop_test import read_checkpoint

fault_run = import_benchmark('lib.fault_run')
runs = import_benchmark('lib.runs')

pytestmark = pytest.mark.usefixtures('forked_launches')

NUM_STEPS = 400
FLAGS = [
  *('--strategy=ring_allreduce', *SMALL, '--model=mlp', '--batch_size=20'),
  *('--seed=5', f'--train_steps={NUM_STEPS}', '--validation_steps=0'),
  *('--early_stopping_patience=0', '--save_steps=100'),
  # Several buckets.
  '--bucket_mib=0.1',
]


def find_twice(events):
  """Returns the batches that were used more than once."""
  used = collections.Counter(
    ticket
    for event in events
    if event['event'] == 'ran'
    for ticket in event['tickets']
  )
  return [ticket for ticket, count in used.items() if count > 1]


def train(folder, hit=lambda run: None, more=()):
  """Runs a training of three workers; returns (run, its checkpoint).

  Args:
    folder: path.
    hit: callable(run), does something to it.
    more: list of str, flags.
  """
  folder.mkdir(exist_ok=True)
  run = fault_run.Run(folder, [*FLAGS, *more], num_ps=0, num_workers=3)
  try:
    hit(run)
    problem, report = run.finish(240)
    assert not problem, run.screen
    assert report['global_step'] == NUM_STEPS
  finally:
    run.close()
  return run, read_checkpoint(run.logdir)


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """The checkpoint {name: array} of a run without a fault."""
  return train(tmp_path_factory.mktemp('whole'))[1]


def kill(run, names, step):
  assert run.wait_until(lambda: run.step >= step)
  for name in names:
    assert run.signal(name, signal.SIGKILL)


def wait_for_text(run, names, text):
  assert run.wait_until(
    lambda: all(
      any(text in line for line in run.logs[name].texts) for name in names
    ),
    limit_secs=60,
  ), f'{names} do not say {text!r}: {run.screen}'


def assert_as_if_nothing_had_been(run, found, expected):
  """No step was lost or done again, and the weights are what they would be."""
  events = run.read_history()
  assert [e for e in events if e['event'] == 'restored'] == []
  assert find_twice(events) == []
  assert_same(found, expected)
  assert_no_traceback(run)


def assert_same(found, expected):
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_no_traceback(run):
  for log in run.logs.values():
    assert 'Traceback' not in '\n'.join(log.texts)


@pytest.mark.daily(but=['chief and worker'])
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  ('names', 'more'),
  [
    (['worker 1'], []),
    (['worker 0'], ['--steps_per_run=5']),
    (['worker 2', 'worker 0'], []),
    (['worker 1', 'worker 2'], ['--steps_per_run=5']),
  ],
  ids=['worker', 'chief', 'chief and worker', 'two workers'],
)
def test_who_is_killed_comes_back_and_no_step_is_lost(
  tmp_path, expected, names, more
):
  run, found = train(
    tmp_path, functools.partial(kill, names=names, step=60), more
  )
  assert_as_if_nothing_had_been(run, found, expected)
  for name, log in run.logs.items():
    text = '\n'.join(log.texts)
    assert (name in names) == ('--- ' in text)
    assert re.search(r'goes on at step [\d,]+ with ', text)
    if name not in names:
      assert re.search(r'lost worker \d at .*: waits for \w+ successor', text)
      assert ': 0 steps lost' in text


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_may_be_lost_while_all_wait_for_another(tmp_path, expected):
  def hit(run):
    kill(run, ['worker 2'], 60)
    wait_for_text(run, ['worker 1'], 'waits for its successor')
    assert run.signal('worker 0', signal.SIGKILL)

  run, found = train(tmp_path, hit)
  assert_as_if_nothing_had_been(run, found, expected)
  starts = [len(log.start_times) for log in run.logs.values()]
  assert starts == [1, 0, 1]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('name', ['worker 0', 'worker 1'])
def test_all_go_on_when_one_wakes_up_that_was_suspended_beyond_the_limit(
  tmp_path, expected, name
):
  others = [f'worker {i}' for i in range(3) if f'worker {i}' != name]

  def hit(run):
    assert run.wait_until(lambda: run.step >= 60)
    assert run.signal(name, signal.SIGSTOP)
    # They give up, and are started again.
    wait_for_text(run, others, '--- ')
    assert run.signal(name, signal.SIGCONT)

  limits = ['--stall_warn_secs=1', '--stall_fail_secs=4']
  run, found = train(tmp_path, hit, limits)
  # The others have ended: a checkpoint may count, but the bits are the same.
  assert_same(found, expected)
  assert_no_traceback(run)


SCRIPT = """
import hashlib

import distmnist.runtime
import tensorflow.compat.v1 as tf
import distmnist


class Tell(tf.train.SessionRunHook):
  def begin(self):
    self.variables = tf.global_variables()

  def after_run(self, run_context, run_values):
    print('a step', flush=True)

  def end(self, session):
    values = session.run(self.variables)
    digest = hashlib.sha256(b''.join(value.tobytes() for value in values))
    print('all bits:', digest.hexdigest(), flush=True)


def train(task):
  def build_loss():
    x = tf.random.stateless_normal([20, 7], [task.global_step, task.index])
    first = [tf.random.stateless_normal(n, [1, 2]) for n in ([7, 50], [50])]
    h = tf.nn.tanh(x @ tf.get_variable('w', initializer=first[0]))
    found = tf.linalg.matvec(h, tf.get_variable('v', initializer=first[1]))
    return tf.reduce_mean((found - x[:, 0]) ** 2)

  train_op, _ = task.minimize(build_loss)
  with task.session(1000, [Tell()]) as session:
    while not session.should_stop():
      session.run(train_op)


def run():
  distmnist.run_task(train)
"""


def run_script(folder, hits):
  """Runs the script on three workers; returns what they tell in the end.

  Args:
    folder: path.
    hits: list of (steps, name): who is killed once worker 1 has made so many.
  """
  folder.mkdir()
  (folder / 'mine.py').write_text(SCRIPT)
  with runs.Launch(
    folder,
    (0, 3),
    ['--strategy=ring_allreduce', '--optimizer=adam', '--learning_rate=0.01'],
    ['--max_restarts=9', '--module=mine'],
    env={'PYTHONPATH': str(folder)},
  ) as run:
    for num_steps, name in hits:
      log = run.logs['worker 1']
      assert run.wait_until(
        lambda log=log, n=num_steps: log.texts.count('a step') >= n
      )
      assert run.signal(name, signal.SIGKILL)
    run.wait_until(lambda: False)
    assert run.code == 0
  return [
    [text for text in log.texts if text.startswith('all bits:')]
    for log in run.logs.values()
  ]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_the_end_all_have_the_bits_of_a_run_without_a_fault(tmp_path):
  whole = run_script(tmp_path / 'whole', [])
  hits = [(50, 'worker 2'), (200, 'worker 0'), (400, 'worker 1')]
  found = run_script(tmp_path / 'hit', hits)
  assert found == whole and whole[0] == whole[1] == whole[2]
  assert [len(lines) for lines in whole] == [1, 1, 1]
