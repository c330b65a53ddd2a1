"""problem_checks: the graph of a problem is tried before anything serves."""

import re

import pytest

from distmnist.common import cli
from distmnist.training.problems import problem_checks, problem_data
from tests.support import problems

HEAD = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.ones([8, 2]), np.ones(8)

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.fixture
def check(set_flags, tmp_path):
  def check_file(more):
    path = problems.write(tmp_path / 'net.py', HEAD + more)
    found = problems.load(path, set_flags)
    train, _ = problem_data.load_training_splits(found)
    problem_checks.check_graph(found, train, batch_size=4)
    problem_checks.check_rate(found, last_step=20, epochs_per_update=0.5)

  return check_file


@pytest.mark.slow
def test_a_net_that_fits_is_taken(check):
  check("""
def build(x, is_training):
  assert x.shape.as_list() == [4 if is_training else None, 2]
  count = tf.get_variable('count', [], trainable=False)
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1) + count
""")


@pytest.mark.parametrize(
  'line, message',
  [
    (
      'raw = tf.compat.v2.Variable(tf.ones([2, 1]), name="raw")\n'
      '  return tf.squeeze(x @ raw, 1)',
      "raw' is made by a Keras layer, by TensorFlow 2 or outside of build()",
    ),
    ('return x[:, 0]', 'build() makes no trainable variable'),
    (
      'return x @ tf.get_variable("w", [2], constraint=tf.nn.relu)',
      "the variable 'w' has a constraint, which no update rule keeps",
    ),
    (
      'return x[:, 0] * tf.get_variable("w", [], tf.float32) + tf.cast('
      'tf.get_variable("n", [], tf.int32, tf.zeros_initializer()), tf.float32)',
      "the variable 'n' is of int32, and no gradient moves it: make it with",
    ),
    (
      'return x[:, 0] * tf.get_variable("w" if is_training else "v", [])',
      "build() makes the variable 'v' of [] where is_training is False, and no",
    ),
    (
      'return x[:, is_training] * tf.get_variable("w", []) / is_training.n',
      "net.py:12, in build(): AttributeError: 'bool' object has no attribute",
    ),
    (
      'return tf.function(lambda x: x[:, 0] * tf.get_variable("w", []))(x)',
      'net.py:12, in build(): ValueError: Variable w already exists, disal',
    ),
    (
      'return x @ tf.get_variable("w", [3, 1])',
      'net.py:12, in build(): ValueError: Dimensions must be equal',
    ),
    (
      'return tf.squeeze(x @ tf.get_variable("w", [2, 1]))[:3]',
      'net.py:9, in loss(): ValueError: Dimensions must be equal',
    ),
  ],
)
def test_a_net_that_cannot_be_shared_is_named(check, line, message):
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    check(f"""
def build(x, is_training):
  {line}
""")


@pytest.mark.slow
@pytest.mark.parametrize(
  'values, message',
  [
    ('losses[:3]', "'loss' has 3 values for 4 examples: expected one an exa"),
    ('tf.concat([losses, losses], 0)', "'loss' has 8 values for 4 examples"),
    (
      'tf.boolean_mask(losses, losses > 0)',
      "'loss' has an unknown number of values for 4 examples: expected one an "
      'example (tf.boolean_mask leaves some out',
    ),
  ],
)
def test_a_loss_has_as_many_values_as_there_are_examples(
  check, values, message
):
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    check(f"""
def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def loss(y, outputs):
  losses = (y - outputs) ** 2
  return {values}
""")


@pytest.mark.parametrize('size', [2, 3])
def test_a_spec_of_other_data_is_named(check, size):
  code = f"""
def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def spec():
  return tf.TensorSpec([{size}], tf.float32)
"""
  if size == 2:
    check(code)
    return
  with pytest.raises(
    cli.UsageError,
    match=r'spec\(\) says x float32 \[3\] of an example, but the training data '
    r'have x float32 \[2\]$',
  ):
    check(code)


@pytest.mark.parametrize('name', ['loss', 'half', 'none'])
def test_the_metric_that_judges_is_known_before(check, name):
  code = f"""
best = '-{name}'

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def finish(means):
  return means | {{'half': means['loss'] / 2}}
"""
  if name != 'none':
    check(code)
    return
  with pytest.raises(cli.UsageError, match="'none': expected one of half, los"):
    check(code)


def test_a_finish_that_cannot_take_any_means_is_not_judged(check):
  check("""
best = '-other'

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def finish(means):
  return {'other': 1 / (means['loss'] - 0.5)}
""")


def test_a_variable_of_preprocess_is_named(check):
  with pytest.raises(
    cli.UsageError, match="preprocess.. makes the variable 's', but runs on"
  ):
    check("""
def preprocess(x, y, is_training):
  return x * tf.get_variable('s', [2]), y

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)
""")


@pytest.mark.parametrize('found', ['x', 'None', '(x, y, y)'])
def test_preprocess_gives_x_and_y(check, found):
  with pytest.raises(cli.UsageError, match=r'preprocess\(\) gave '):
    check(f"""
def preprocess(x, y, is_training):
  return {found}

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)
""")


@pytest.mark.slow
def test_a_loss_may_have_variables_and_a_model_a_partitioner(check):
  check("""
def build(x, is_training):
  with tf.variable_scope('net', partitioner=tf.fixed_size_partitioner(2)):
    return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def loss(y, outputs):
  scale = tf.get_variable('scale', [])
  return tf.exp(-scale) * (y - outputs) ** 2 + scale
""")


NET = """
def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def learning_rate(step, epoch):
  return """


@pytest.mark.slow
@pytest.mark.parametrize(
  'rate, message',
  [
    ('0.1 / tf.cast(step, tf.float32)', 'learning_rate() gives inf at step 0'),
    ('4.5 - epoch', 'learning_rate() gives -0.5 at step 10: expected a number'),
    (
      'tf.gather([0.1] * 9, tf.cast(epoch, tf.int32))',
      'fails at step 18: indices = 9 is',
    ),
    # Only for some steps.
    ('tf.where(tf.abs(epoch - 3) < 1, -1.0, 0.1)', 'gives -1.0 at step 5'),
    ('tf.log(epoch - 1)', 'learning_rate() gives nan at step 0'),
    ('"fast"', 'learning_rate() gave '),
    ('[0.1, 0.2]', 'learning_rate() gave '),
    ('step.n', 'in learning_rate(): AttributeError: '),
  ],
)
def test_a_rate_that_is_none_is_refused(check, rate, message):
  with pytest.raises(cli.UsageError) as caught:
    check(NET + rate)
  assert message in str(caught.value)


@pytest.mark.slow
def test_a_rate_of_the_problem_takes_the_place_of_the_flags(check, set_flags):
  check(NET + '0.1 / (1 + epoch)')
  check(NET + '0.1 * (1 - tf.cast(step, tf.float32) / 20)')
  check(NET + '0.1 / (1 + tf.cast(tf.train.get_global_step(), tf.float32))')
  check(NET + 'tf.gather([0.2] * 11, tf.cast(epoch, tf.int32))')
  set_flags('--learning_rate=0.5')
  with pytest.raises(cli.UsageError, match='leave out --learning_rate$'):
    check(NET + '0.1')


def test_a_number_in_place_of_the_rate_is_refused(check):
  with pytest.raises(cli.UsageError, match='learning_rate is 0.01: '):
    check(NET.partition('def learning_rate')[0] + 'learning_rate = 0.01')
