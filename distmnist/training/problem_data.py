"""The examples of a problem, checked as a user's may be wrong."""

import tensorflow.compat.v1 as tf

from distmnist.data import split as split_lib
from distmnist.problems import images
from distmnist.training import problem_module


def load_training_splits(problem):
  """Returns (train, validation), split.Splits; validation may be empty.

  Args:
    problem: problem.Problem.

  Raises:
    cli.UsageError: the data are not what a graph can take.
  """
  train = load(problem, 'train')
  if train is None or not train.num_examples:
    raise problem.error("load('train') gave nothing to train on")
  validation = load(problem, 'validation') or train.slice(0, 0)
  _check_alike(problem, train, validation, 'validation')
  return train, validation


def load_test_split(problem):
  """Returns the split.Split by which a training is judged in the end.

  Raises:
    cli.UsageError: there is none.
  """
  test = load(problem, 'test')
  if test is None or not test.num_examples:
    raise problem.error(
      "load('test') gave nothing to judge the training by: expected (x, y)"
    )
  return test


def load(problem, name):
  """Returns the split.Split called `name`, or None where there is none.

  Raises:
    cli.UsageError: it is not what a graph can take.
  """
  found = problem.load(name)
  if found is None and problem.is_custom:
    return None
  if not isinstance(found, tuple) or len(found) != 2:
    raise problem.error(
      f'load({name!r}) gave {problem_module.shorten(found)}: expected (x, y), '
      'or None where there is no such split'
    )
  if not problem.is_custom:
    return split_lib.Split(*found)
  try:
    return split_lib.make(*found)
  except ValueError as error:
    raise problem.error(f'load({name!r}): {error}') from error


def make_batch(problem, num_examples):
  """Returns (x, y), tensors of zeros as `preprocess` gives them.

  No file is read for images; of a user's problem the training data are loaded.

  Args:
    problem: problem.Problem.
    num_examples: int.
  """
  if not problem.is_custom:
    return images.make_batch(num_examples)
  train, _ = load_training_splits(problem)
  zeros = train.pack(
    [
      tf.zeros([num_examples, *array.shape[1:]], tf.as_dtype(array.dtype))
      for array in train.arrays()
    ]
  )
  return problem.preprocess(*zeros, is_training=True)


def _check_alike(problem, train, other, name):
  try:
    tf.nest.assert_same_structure(tuple(train), tuple(other))
  except (ValueError, TypeError) as error:
    raise problem.error(
      f'load({name!r}) has another structure than the training data'
    ) from error
  for mine, theirs in zip(train.arrays(), other.arrays(), strict=True):
    if (mine.shape[1:], mine.dtype) != (theirs.shape[1:], theirs.dtype):
      raise problem.error(
        f'load({name!r}) has an array of {theirs.dtype} '
        f'{list(theirs.shape[1:])} where the training data have {mine.dtype} '
        f'{list(mine.shape[1:])}'
      )
