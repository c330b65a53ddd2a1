"""problem_spec: what a problem's SavedModel takes and gives."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.problems import images
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_spec
from tests.support import problems

HEAD = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  n = 8
  x = np.ones([n, 2]), {'b': np.array(['a'] * n), 'a': np.arange(n)}
  return x, np.ones(n)

def build(x, is_training):
  assert not is_training
  return {'sum': tf.reduce_sum(x[0], 1), 'parts': (x[0], x[1]['a'])}

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.fixture
def make(set_flags, tmp_path):
  def make_problem(more):
    path = problems.write(tmp_path / 'net.py', HEAD + more)
    return problems.load(path, set_flags)

  return make_problem


def build(problem):
  """Returns (inputs, outputs, values of the outputs for three rows of ones)."""
  with tf.Graph().as_default(), tf.Session() as session:
    inputs, outputs = problem_spec.build(problem, problem_spec.find(problem))
    fed = {
      tensor: np.ones([3, *tensor.shape[1:]], tensor.dtype.as_numpy_dtype)
      for tensor in inputs.values()
      if tensor.dtype != tf.string
    }
    return inputs, outputs, session.run(outputs, fed)


def test_data_that_are_not_at_hand_need_a_spec(make):
  problem = make("""
def load(split):
  raise FileNotFoundError('a.csv')
""")
  with pytest.raises(cli.UsageError, match=r'a\.csv; .* function spec\(\)'):
    problem_spec.find(problem)


def test_without_spec_and_serve_the_data_and_the_outputs_tell(make):
  inputs, outputs, values = build(make(''))
  assert {k: (v.dtype, v.shape.as_list()) for k, v in inputs.items()} == {
    '0': (tf.float32, [None, 2]),
    '1/a': (tf.int64, [None]),
    '1/b': (tf.string, [None]),
  }
  assert list(outputs) == ['parts/0', 'parts/1', 'sum']
  assert values['sum'].tolist() == [2, 2, 2]
  # What goes out unchanged is still another tensor.
  assert outputs['parts/1'] is not inputs['1/a']
  assert values['parts/1'].tolist() == [1, 1, 1]


def test_spec_and_serve_tell_and_no_data_are_read(make):
  problem = make("""
def load(split):
  raise OSError('no data')

def spec():
  assert tf.executing_eagerly()
  vector = tf.TensorSpec([2], tf.float32, 'the vector')
  return vector, {'a': tf.TensorSpec([], tf.int32)}

def preprocess(x, y, is_training):
  assert y is None
  return (x[0] * 3, x[1]), y

def serve(outputs):
  assert not tf.executing_eagerly()
  return {'total': outputs['sum']}
""")
  inputs, outputs, values = build(problem)
  assert {k: (v.dtype, v.shape.as_list()) for k, v in inputs.items()} == {
    'the vector': (tf.float32, [None, 2]),
    '1/a': (tf.int32, [None]),
  }
  assert list(outputs) == ['total']
  assert values['total'].tolist() == [6, 6, 6]


def test_images_are_a_problem_like_others(set_flags):
  set_flags('--dataset=mnist', '--data_dir=/no/such/folder')
  problem = problem_lib.from_flags()
  with tf.Graph().as_default():
    inputs, outputs = problem_spec.build(problem, images.spec())
  ((name, tensor),) = inputs.items()
  assert (name, tensor.dtype) == ('images', tf.uint8)
  assert tensor.shape.as_list() == [None, 28, 28, 1]
  assert outputs['classes'].dtype == tf.int64
  assert outputs['probabilities'].shape.as_list() == [None, 10]


@pytest.mark.parametrize(
  'more, message',
  [
    ('def spec(): return (2,)', 'spec() gave 2: expected a tf.TensorSpec of'),
    ('def spec(): return ()', 'spec() gave nothing: expected what x is'),
    ('def spec(): return tf.TensorSpec(None)', 'spec() gave TensorSpec(shape='),
    ('def spec(): return 1 / 0', 'in spec(): ZeroDivisionError: division by'),
    (
      """def spec():
  one = tf.TensorSpec([], tf.int32, 'a')
  return one, one""",
      "spec() has two inputs called 'a'",
    ),
    (
      'def preprocess(x, y, is_training): return x, tf.cast(y, tf.float32)',
      'in preprocess(): ValueError: None values not supported.; an export has '
      'no labels: preprocess() is called with y=None, and has to take that',
    ),
    ('def serve(outputs): return None', 'serve() gave None: expected a dict'),
    ('def serve(outputs): return {}', 'serve() gave {}: expected a dict of na'),
    ('def serve(outputs): return {"a": 3}', "3 cannot be served as 'a': expec"),
    (
      'def serve(outputs): return {"a": tf.reduce_sum(outputs["sum"])}',
      "the output 'a' has the shape (), whatever the number of examples: expe",
    ),
    (
      'def serve(outputs): return {"a": tf.zeros([2, 3])}',
      "the output 'a' has the shape (2, 3), whatever the number of examples",
    ),
    (
      'def serve(outputs): return {"a": tf.sparse.from_dense(outputs["sum"])}',
      "the output 'a' is a SparseTensor: expected a dense tensor [n, ...], as",
    ),
    (
      """def serve(outputs):
  return {'a': tf.py_func(abs, [outputs['sum']], tf.float32, name='mine')}""",
      'the graph calls Python (mine), which is not in a SavedModel: do without',
    ),
  ],
)
def test_what_cannot_be_served_is_one_line(make, more, message):
  with pytest.raises(cli.UsageError, match=re.escape(message)) as caught:
    build(make(more))
  assert '\n' not in str(caught.value)


X = (
  tf.TensorSpec([2], tf.float32),
  {'a': tf.TensorSpec([], tf.int64), 'b': tf.TensorSpec([], tf.string)},
)


@pytest.mark.parametrize(
  'shape, dtype, structure, is_right',
  [
    ('[2]', 'tf.float32', '{}, {{"a": {}, "b": {}}}', True),
    ('[None]', 'tf.float32', '{}, {{"a": {}, "b": {}}}', True),
    ('[3]', 'tf.float32', '{}, {{"a": {}, "b": {}}}', False),
    ('[2]', 'tf.float64', '{}, {{"a": {}, "b": {}}}', False),
    ('[2]', 'tf.float32', '{}, {{"a": {}}}', False),
    ('[2]', 'tf.float32', '[{}, {{"a": {}, "b": {}}}]', False),
  ],
)
def test_spec_says_what_the_data_are(make, shape, dtype, structure, is_right):
  leaves = (
    f'tf.TensorSpec({shape}, {dtype})',
    'tf.TensorSpec([], tf.int64)',
    'tf.TensorSpec([], tf.string)',
  )
  problem = make(f'def spec(): return {structure.format(*leaves)}')
  if is_right:
    problem_spec.check(problem, X)
    return
  with pytest.raises(
    cli.UsageError,
    match=r'spec\(\) says .+ of an example, but the training data have '
    r'0 float32 \[2\], 1/a int64 \[\], 1/b string \[\]$',
  ):
    problem_spec.check(problem, X)


def test_without_spec_there_is_nothing_to_check(make):
  problem_spec.check(make(''), X)
