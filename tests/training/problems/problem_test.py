"""problem: a user's functions, with what they may leave out and get wrong."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

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
  mean, values, weight = found.loss(y, tf.zeros([2]))
  assert tf_session.run(mean) == 5
  assert tf_session.run(values).tolist() == [1, 9]
  assert weight is None
  assert found.metrics(y, y) == {}
  assert found.preprocess(1, 2, is_training=True) == (1, 2)
  assert found.finish({'loss': 2.0}) == {'loss': 2.0}
  found.check_best({'loss': 2.0})
  assert found.flags_of_meaning() == ['problem']
  found.prepare()


def test_a_loss_may_be_a_mean(make, y, tf_session):
  found = make("""
def loss(y, outputs):
  return tf.cast(tf.reduce_mean(y), tf.float64)
""")
  mean, values, weight = found.loss(y, y)
  assert (mean.dtype, values, weight) == (tf.float32, None, None)
  assert tf_session.run(mean) == 2


@pytest.mark.parametrize('counts', [[[1, 0, 0], [1, 1, 0]], [[0] * 3] * 2])
def test_a_loss_may_give_weights_by_whose_sum_it_is_divided(
  make, tf_session, counts
):
  found = make(f"""
def loss(y, outputs):
  return y * outputs, tf.constant({counts}, tf.float64)
""")
  y = np.float32([[1, 2, 3], [4, 5, 6]])
  w = np.float32([0.5, 3])
  ones = tf.ones([2, 3])
  losses = [found.loss(tf.constant(y), ones)]
  losses.append(found.loss(tf.constant(y), ones, tf.constant(w)))
  total = max(1, np.sum(counts))
  expected = [(y * counts).sum() / total, (w @ (y * counts)).sum() / total]
  for loss, mean in zip(losses, expected, strict=True):
    assert loss.values is None
    assert tf_session.run(loss.mean) == pytest.approx(mean, rel=1e-6)
    assert tf_session.run(loss.weight) == pytest.approx(np.mean(counts))
  # All batches of a split are added up before they are divided.
  sums = problem_lib.build_sums(found, tf.constant(y), ones)
  assert tf_session.run(sums['loss'][1]) == pytest.approx(2 * np.mean(counts))


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


def test_the_flag_names_another_judge_and_the_judge_comes_first(make):
  found = make("\nbest = '+right'\n", '--best=-loss')
  assert (found.metric, found.sign, found.judged_by) == ('loss', -1, '-loss')
  assert [*found.finish({'right': 0.5, 'loss': 2.0})] == ['loss', 'right']
  with pytest.raises(cli.UsageError, match='--best=-loss: .* one of right$'):
    found.check_best(['right'])
  with pytest.raises(
    flags.IllegalFlagValueError, match='--best=loss: expected'
  ):
    make('', '--best=loss')


def test_flags_of_its_own_must_stay_the_same(make):
  found = make(
    """
from absl import flags
LAYERS = flags.DEFINE_integer('layers_of_mine', 2, 'Layers.')
""",
    '--layers_of_mine=3',
  )
  assert found.flags_of_meaning() == ['problem', 'layers_of_mine']


# Of each function its arguments, and how the test calls it.
CALLS = {
  'loss': ('y, outputs', lambda problem, y: problem.loss(y, y)),
  'metrics': ('y, outputs', lambda problem, y: problem.metrics(y, y)),
  'finish': ('means', lambda problem, y: problem.finish({'loss': 1.0})),
}


@pytest.mark.parametrize(
  'name, body, message',
  [
    (
      'loss',
      'return tf.zeros([2, 2])',
      'float32 of shape (2, 2): expected fl',
    ),
    (
      'loss',
      "return 'small'",
      "'small': expected a tensor of float32, one va",
    ),
    (
      'loss',
      'return tf.as_string(y)',
      'string of shape (2,): expected float3',
    ),
    ('loss', '(y - outputs) ** 2', 'None: does it end with a return?'),
    ('metrics', 'return [y]', '[<tf.Tensor'),
    (
      *('metrics', "return {'m': tf.reduce_mean(y)}"),
      "'m' of shape (): expected one value an example; what is",
    ),
    (
      *('metrics', "return {'m': None}"),
      "'m' as None: expected a tensor of numbers, one an exampl",
    ),
    ('finish', 'pass', 'None: expected a dict of name -> number'),
    (
      'finish',
      "return {'loss': 'x'}",
      "{'loss': 'x'}: expected a dict of nam",
    ),
  ],
)
def test_what_a_function_gives_has_its_form(make, y, name, body, message):
  arguments, call = CALLS[name]
  found = make(f'\ndef {name}({arguments}):\n  {body}\n')
  check_line(lambda: call(found, y), f'{name}() gave {message}')


@pytest.mark.parametrize(
  'more, message',
  [
    ("best = 'loss'", "best is 'loss': expected a metric with its direction"),
    ('load = 5', 'has no function load: expected load(split), build(x'),
  ],
)
def test_a_file_that_is_no_problem_is_one_line(make, more, message):
  check_line(lambda: make(f'\n{more}\n'), message)


def test_a_mistake_is_one_line_with_its_place(make, y):
  found = make('\ndef loss(y, outputs):\n  return y / none\n')
  message = "mine.py:15, in loss(): NameError: name 'none' is not defined"
  check_line(lambda: found.loss(y, y), message)


def test_a_best_that_is_none_of_the_metrics_is_one_line(make):
  found = make("\nbest = '+f1'\n")
  message = "best names the metric 'f1': expected one of a, b"
  check_line(lambda: found.check_best(['b', 'a']), message)


def check_line(call, message):
  with pytest.raises(cli.UsageError, match=re.escape(message)) as caught:
    call()
  assert str(caught.value).startswith('--problem=')
  assert '\n' not in str(caught.value)
