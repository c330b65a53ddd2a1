"""problem_data: the splits of a problem, and what is wrong with them."""

import re

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.support import problems

REST = """
import numpy as np
build = loss = print
"""


@pytest.fixture
def make(set_flags, tmp_path):
  def make_problem(load):
    path = problems.write(tmp_path / 'data.py', REST + load)
    return problems.load(path, set_flags)

  return make_problem


def test_a_split_that_is_not_there_is_empty(make):
  found = make("""
def load(split):
  if split != 'validation':
    return {'a': np.ones([3, 2])}, [1, 2, 3]
""")
  train, validation = problem_data.load_training_splits(found)
  assert (train.num_examples, validation.num_examples) == (3, 0)
  assert validation.x['a'].shape == (0, 2)
  judges = problem_data.load_judges(found, train, validation)
  assert {name: s.num_examples for name, s in judges.items()} == {'test': 3}
  x, y, _ = problem_data.make_batch(found, 4)
  assert (x['a'].shape.as_list(), y.dtype) == ([4, 2], tf.int64)


def test_a_batch_of_images_needs_no_file(set_flags):
  set_flags('--dataset=mnist', '--data_dir=/no/such/folder')
  x, y, _ = problem_data.make_batch(problem_lib.from_flags(), 2)
  assert (x.shape.as_list(), y.shape.as_list()) == ([2, 28, 28, 1], [2])


@pytest.mark.parametrize(
  'body, message',
  [
    ('return None', "load('train') gave nothing to train on"),
    ('return np.ones([0, 2]), np.ones(0)', "load('train') gave nothing to tr"),
    (
      'return np.ones(3), np.ones(3), np.zeros(3)',
      'the weights: all 3 weights',
    ),
    ('return np.ones(3)', "load('train') gave an array of shape [3]: expecte"),
    ('return {0: np.ones(3), "b": np.ones(3)}, 1', "load('train'): "),
    ('return np.ones(3), np.ones(2)', "load('train'): its arrays have 2, 3 e"),
    (
      "n = 2 if split == 'train' else 3\n  return np.ones([4, n]), np.ones(4)",
      "load('validation') has float32 [3] as x where the training data have "
      'float32 [2]: give all examples one type and shape, such as by with_type',
    ),
    (
      "x = np.ones(4, int if split == 'train' else float)\n"
      "  return {'user': np.ones(4), 'film': x}, np.ones(4)",
      "load('validation') has float32 [] as x/film where the training data ha",
    ),
    (
      "x = np.ones(4)\n  return (x if split == 'train' else (x, x)), x",
      "load('validation') has another structure than the training data",
    ),
    (
      'return type("Reader", (), {"num_examples": 0, "read": None})()',
      "load('train') gave a reader without an example",
    ),
    ("return open('/no/such/file')", 'data.py:6, in load(): FileNotFoundErro'),
  ],
)
def test_data_that_cannot_be_learnt_from_are_named(make, body, message):
  found = make(f"""
def load(split):
  {body}
""")
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    problem_data.load_training_splits(found)


def find_judges(found):
  """Returns {name: examples} of what judges, and the name that comes first."""
  judges = problem_data.load_judges(
    found, *problem_data.load_training_splits(found)
  )
  name, split = problem_data.load_judge(found)
  assert split.num_examples == judges[name].num_examples
  return {name: split.num_examples for name, split in judges.items()}, name


@pytest.mark.parametrize(
  'there, judges',
  [
    (('validation', 'test'), {'test': 3, 'validation': 3}),
    (('validation',), {'validation': 3}),
    ((), {'train': 3}),
  ],
)
def test_what_judges_has_the_name_of_its_examples(make, there, judges):
  found = make(f"""
def load(split):
  if split in {('train', *there)}:
    return np.ones(3), np.ones(3)
""")
  assert find_judges(found) == (judges, next(iter(judges)))


READER = """
class Reader:
  num_examples = 3
  def read(self, indices):
    return np.zeros([len(indices), 2]), np.zeros(len(indices))
"""


@pytest.mark.parametrize(
  'code, message',
  [
    (
      "return 2 * (np.ones(0 if split == 'test' else 3),)",
      "load('test') gave no examples",
    ),
    (
      "return Reader() if split == 'train' else None",
      'nothing to judge the training by: expected (x, y), or a reader',
    ),
  ],
)
def test_without_examples_at_hand_nothing_can_be_judged(make, code, message):
  found = make(f'{READER}\ndef load(split):\n  {code}\n')
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    find_judges(found)
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    problem_data.load_judge(found)


def test_what_judges_is_like_what_was_learnt(make):
  found = make("""
def load(split):
  y = np.ones(3) if split != 'test' else np.array([1, 2, 3])
  return np.ones([3, 2]), y
""")
  with pytest.raises(cli.UsageError, match="'test'.*int64.*training.*float32"):
    find_judges(found)


def test_readers_agree_on_what_a_class_is_called(make):
  found = make("""
class Reader:
  num_examples = 3
  def __init__(self, names):
    self.class_names = names
  def read(self, indices):
    return np.zeros([len(indices), 2]), np.zeros(len(indices))

def load(split):
  if split != 'validation':
    return Reader(['cat', 'dog'] if split == 'train' else ['dog'])
""")
  with pytest.raises(cli.UsageError, match='the classes dog, but .* cat, dog'):
    find_judges(found)
