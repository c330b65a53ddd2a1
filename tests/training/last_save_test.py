"""What was trained is saved before what may fail or take long at the end."""

import signal

import pytest

from distmnist.logdir import checkpoints
from tests.support import programs
from tests.support.runner import wait_for_line

_PROBLEM = """
import threading
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from distmnist.nn import layers

SPARSE = flags.DEFINE_bool('sparse', True, 'A table of rows.')
BAD = flags.DEFINE_string('bad', 'test', 'The split that cannot be read.')
HANGS = flags.DEFINE_bool('hangs', False, 'It is not read in time.')


class Reader:
  num_examples = 300

  def __init__(self, is_bad):
    self._is_bad = is_bad

  def read(self, indices):
    if self._is_bad and max(indices) >= 200:
      print('a bad line is read', flush=True)
      if HANGS.value:
        threading.Event().wait(120)
      raise ValueError('data.csv:201: no number')
    x = np.asarray(indices) % 50
    return x, (x % 2).astype(np.float32)


def load(split):
  return Reader(split == BAD.value)


def build(x, is_training):
  if SPARSE.value:
    return tf.reduce_sum(layers.embedding(x, 50, 4, 'rows'), 1)
  return tf.reduce_sum(tf.gather(tf.get_variable('rows', [50, 4]), x), 1)


def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
"""


@pytest.fixture
def start(make_real_cluster, tmp_path):
  """Returns start(*flags) -> (ps, chief) of a run of 6 steps."""
  problem = tmp_path / 'bad_lines.py'
  problem.write_text(_PROBLEM)

  def begin(*flags):
    [ps], [chief] = make_real_cluster(1, 1).start_all(
      *(f'--problem={problem}', '--optimizer=adagrad', '--train_steps=6'),
      *('--validation_steps=3', f'--logdir={tmp_path}/run', *flags),
    )
    return ps, chief

  return begin


def find_step(tmp_path):
  return checkpoints.parse_step(checkpoints.find_latest(f'{tmp_path}/run'))


@pytest.mark.daily(but=['words0-sparse'])
@pytest.mark.slow
@pytest.mark.parametrize('sparse', ['sparse', 'nosparse'])
@pytest.mark.parametrize(
  'words', [['--bad=test'], ['--bad=validation', '--validation_steps=6']]
)
def test_an_evaluation_that_fails_costs_no_step(
  start, tasks, tmp_path, sparse, words
):
  _, chief = start(f'--{sparse}', *words)
  assert tasks.wait(chief) == [1]
  assert 'data.csv:201: no number' in chief.last_line
  assert find_step(tmp_path) == 6


@pytest.mark.slow
def test_a_stop_in_an_evaluation_costs_no_step(start, tasks, tmp_path):
  _, chief = start('--hangs', '--stop_grace_secs=2', '--stall_warn_secs=1')
  wait_for_line(chief, 'a bad line is read')
  line = wait_for_line(chief, 'the evaluation')
  assert 'waiting for worker' not in line
  tasks.signal(chief, signal.SIGTERM)
  assert tasks.wait(chief) == [143]
  assert 'is not saved' not in chief.output
  assert find_step(tmp_path) == 6


_OWN = """
import distmnist.runtime
import tensorflow.compat.v1 as tf


class Test(tf.train.SessionRunHook):
  def end(self, session):
    raise ValueError('the last test has failed')


def train(task):
  train_op, _ = task.minimize(lambda: tf.get_variable('w', [], tf.float32))
  with task.session(6, [Test()]) as session:
    while not session.should_stop():
      session.run(train_op)

def run():
  distmnist.run_task(train)
"""


@pytest.mark.slow
def test_a_last_test_of_a_script_that_fails_costs_no_step(tmp_path):
  (tmp_path / 'mine.py').write_text(_OWN)
  output, errors = programs.run_forked(
    *('launch', '--module=mine', '--num_ps=1', '--num_workers=1'),
    *('--', f'--logdir={tmp_path}/run'),
    code=1,
    PYTHONPATH=str(tmp_path),
  )
  assert 'the last test has failed' in output + errors
  assert find_step(tmp_path) == 6
