"""problem_errors: an op that fails is named by the user's line that made it."""

import contextlib
import re
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import streamed
from distmnist.training.problems import problem_errors
from tests.support import problems

CODE = """
import tensorflow.compat.v1 as tf

def load(split):
  pass

def build(x, is_training):
  table = tf.get_variable('table', [3])
  with tf.device('CPU:0'):  # A GPU has zeros for it, and no error.
    return tf.gather(table, x)

def loss(y, outputs):
  return outputs
"""


@pytest.fixture
def outputs(tf_session, set_flags, tmp_path):
  """(ids, outputs, session) of a problem's net, which has a table of three."""
  path = problems.write(tmp_path / 'table.py', CODE)
  ids = tf.placeholder(tf.int32, [1])
  found = problems.load(path, set_flags).build(ids, is_training=True)
  tf_session.run(tf.global_variables_initializer())
  return ids, found, tf_session


MESSAGE = re.escape('table.py:10, in build(): indices[0] = 5 is not in [0, 3)')


def test_an_op_of_the_problem_is_named_by_its_line(outputs):
  ids, found, session = outputs
  with pytest.raises(cli.RunError, match=MESSAGE), problem_errors.explained():
    session.run(found, {ids: [5]})


def test_a_gradient_is_that_of_the_line_of_its_op(outputs):
  _, found, _ = outputs
  gradient = types.SimpleNamespace(traceback=[], _original_op=found.op)
  failed = tf.errors.InvalidArgumentError(
    None, gradient, 'indices[0] = 5 is not in [0, 3)'
  )
  with pytest.raises(cli.RunError, match=MESSAGE), problem_errors.explained():
    raise failed


def test_a_copy_is_that_of_the_line_of_its_op(outputs):
  ids, found, session = outputs
  [copy] = tf.import_graph_def(
    session.graph.as_graph_def(),
    input_map={ids.name: ids},
    return_elements=[found.name],
    name='run_1/step_2',
  )
  with pytest.raises(cli.RunError, match=MESSAGE), problem_errors.explained():
    session.run(copy, {ids: [5]})


KERAS_CODE = """
import keras

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def load(split):
  pass

def make_model():
  return keras.Sequential([keras.layers.Dense(2)])
"""


@pytest.mark.slow
def test_an_op_that_keras_makes_is_named_by_its_function(
  set_flags, tf_session, tmp_path
):
  path = problems.write(tmp_path / 'named.py', KERAS_CODE)
  problem = problems.load(path, set_flags)
  outputs = problem.build(tf.ones([3, 4]), is_training=True)
  loss = problem.loss(tf.constant(['cat', 'dog', 'cat']), outputs).mean
  tf_session.run(tf.global_variables_initializer())
  message = r'named.py: in loss\(\): Cast string to float is not supported'
  with pytest.raises(cli.RunError, match=message), problem_errors.explained():
    tf_session.run(loss)


def test_other_errors_stay_what_they_are(set_flags, tf_session):
  set_flags()
  with tf.device('CPU:0'):
    wrong = tf.gather([1, 2], tf.placeholder_with_default(7, []))
  for error, call in (
    (tf.errors.InvalidArgumentError, lambda: tf_session.run(wrong)),
    (ValueError, lambda: int('x')),
  ):
    with pytest.raises(error), problem_errors.explained():
      call()


class Reader:
  """One example, until it is told to fail."""

  num_examples = 1
  error = None

  def read(self, indices):
    if self.error:
      raise self.error
    return np.zeros([len(indices), 2], np.float32), indices


def test_a_reader_that_fails_anywhere_is_named(outputs):
  """A graph that reads has its own error; outside, it is the reader's."""
  _, found, _ = outputs
  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.error = ValueError('a.csv:7 has 2 fields')
  hidden = tf.errors.UnknownError(None, found.op, 'Traceback')
  for error in (streamed.ReadError('hidden'), hidden):
    with (
      pytest.raises(cli.RunError, match=r'table.py, in load\(\): .*:7 has 2'),
      problem_errors.explained(),
    ):
      with contextlib.suppress(streamed.ReadError):
        examples.slice(0, 1)
      raise error
  with pytest.raises(KeyError), problem_errors.explained():
    raise KeyError


def test_a_reader_that_failed_earlier_is_not_blamed(outputs):
  ids, found, session = outputs
  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.error = ValueError('a.csv:7 has 2 fields')
  with pytest.raises(streamed.ReadError):
    examples.slice(0, 1)
  with pytest.raises(cli.RunError, match=MESSAGE), problem_errors.explained():
    session.run(found, {ids: [5]})


def test_a_lost_task_is_no_mistake_of_the_problem(outputs):
  _, found, _ = outputs
  lost = tf.errors.UnavailableError(None, found.op, 'gone')
  with pytest.raises(tf.errors.UnavailableError), problem_errors.explained():
    raise lost
