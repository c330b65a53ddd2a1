"""problem: a user's functions, with what they may leave out and get wrong."""

import re

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training.problems import problem as problem_lib
from tests.support import problems

NEEDED = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.ones([4, 2]), np.ones(4)

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def loss(y, outputs):
  return (y - outputs) ** 2
"""
Y, OUTPUTS = tf.float32, (None,)


@pytest.fixture
def make(set_flags, tmp_path):
  """Returns make(code to add, *flags) -> problem.Problem of a file."""

  def make_problem(more='', *words):
    path = problems.write(tmp_path / 'mine.py', NEEDED + more)
    return problems.load(path, set_flags, *words)

  return make_problem


@pytest.fixture
def y(tf_session):
  return tf.constant([1.0, 3.0])


def test_without_the_flag_it_is_the_images(set_flags):
  set_flags('--model=cnn', '--dataset=synthetic')
  found = problem_lib.from_flags()
  assert not found.is_custom
  assert (found.describe(), found.unit) == ('cnn on synthetic', 'images')
  assert (found.metric, found.sign) == ('accuracy', 1)
  assert 'model' in found.flags_of_meaning()


def test_three_functions_are_enough(make, y, tf_session):
  found = make()
  assert (found.metric, found.sign, found.unit) == ('loss', -1, 'examples')
  mean, values = found.loss(y, tf.zeros([2]))
  assert tf_session.run(mean) == 5
  assert tf_session.run(values).tolist() == [1, 9]
  assert found.metrics(y, y) == {}
  assert found.preprocess(1, 2, is_training=True) == (1, 2)
  assert found.finish({'loss': 2.0}) == {'loss': 2.0}
  assert found.choose({'loss': 2.0}) == 2.0
  assert found.flags_of_meaning() == ['problem']
  found.prepare()


def test_a_loss_may_be_a_mean(make, y, tf_session):
  found = make("""
def loss(y, outputs):
  return tf.cast(tf.reduce_mean(y), tf.float64)
""")
  mean, values = found.loss(y, y)
  assert (mean.dtype, values) == (tf.float32, None)
  assert tf_session.run(mean) == 2


def test_metrics_have_a_value_an_example_and_finish_adds_to_them(
  make, y, tf_session
):
  found = make("""
best = '+right'

def metrics(y, outputs):
  return {'right': tf.equal(y, outputs)}

def finish(means):
  return means | {'wrong': 1 - means['right']}
""")
  values = found.metrics(y, tf.constant([1.0, 2.0]))['right']
  assert tf_session.run(values).tolist() == [1, 0]
  assert found.finish({'right': 0.75}) == {'right': 0.75, 'wrong': 0.25}
  assert (found.metric, found.sign) == ('right', 1)


def test_flags_of_its_own_must_stay_the_same(make):
  found = make(
    """
from absl import flags
LAYERS = flags.DEFINE_integer('layers_of_mine', 2, 'Layers.')
""",
    '--layers_of_mine=3',
  )
  assert found.flags_of_meaning() == ['problem', 'layers_of_mine']


@pytest.mark.parametrize(
  'more, call, message',
  [
    ("best = 'loss'", None, "best is 'loss': expected a metric with its dire"),
    ('load = 5', None, 'has no function load: expected load(split), build(x'),
    (
      'def loss(y, outputs):\n  return tf.zeros([2, 2])',
      lambda p, y: p.loss(y, y),
      'loss() gave float32 of shape (2, 2): expected float32, one value an ex',
    ),
    (
      "def loss(y, outputs):\n  return 'small'",
      lambda p, y: p.loss(y, y),
      "loss() gave 'small': expected a tensor of float32, one value an exampl",
    ),
    (
      'def loss(y, outputs):\n  return tf.as_string(y)',
      lambda p, y: p.loss(y, y),
      'loss() gave string of shape (2,): expected float32',
    ),
    (
      'def loss(y, outputs):\n  (y - outputs) ** 2',
      lambda p, y: p.loss(y, y),
      'loss() gave None: does it end with a return?',
    ),
    (
      'def loss(y, outputs):\n  return y / none',
      lambda p, y: p.loss(y, y),
      "mine.py:15, in loss(): NameError: name 'none' is not defined",
    ),
    (
      'def metrics(y, outputs):\n  return [y]',
      lambda p, y: p.metrics(y, y),
      'metrics() gave [<tf.Tensor',
    ),
    (
      "def metrics(y, outputs):\n  return {'m': tf.reduce_mean(y)}",
      lambda p, y: p.metrics(y, y),
      "metrics() gave 'm' of shape (): expected one value an example; what is",
    ),
    (
      "def metrics(y, outputs):\n  return {'m': None}",
      lambda p, y: p.metrics(y, y),
      "metrics() gave 'm' as None: expected a tensor of numbers, one an exampl",
    ),
    (
      'def finish(means):\n  pass',
      lambda p, y: p.finish({'loss': 1.0}),
      'finish() gave None: expected a dict of name -> number',
    ),
    (
      "def finish(means):\n  return {'loss': 'small'}",
      lambda p, y: p.finish({'loss': 1.0}),
      "finish() gave {'loss': 'small'}: expected a dict of name -> number",
    ),
    (
      "best = '+f1'",
      lambda p, y: p.choose({'b': 1.0, 'a': 2.0}),
      "best names the metric 'f1': expected one of a, b",
    ),
  ],
)
def test_a_mistake_is_one_line_with_its_place(make, y, more, call, message):
  with pytest.raises(cli.UsageError, match=re.escape(message)) as caught:
    found = make(f'\n{more}\n')
    call(found, y)
  assert str(caught.value).startswith('--problem=')
  assert '\n' not in str(caught.value)
