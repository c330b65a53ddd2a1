"""The examples of a problem, checked because a user's may be wrong."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.data import array_folder, example_weights, streamed
from distmnist.data import split as split_lib
from distmnist.problems import images
from distmnist.readers import (
  data_cache,  # noqa: F401  --data_cache.
  dataset,
)
from distmnist.training.problems import problem_module, user_calls

if TYPE_CHECKING:
  import contextlib

  from distmnist.training.problems import problem as problem_lib

# What a problem's load() gives, or a reader of it.
Examples = split_lib.Split | streamed.Streamed

_FED_DIR = flags.DEFINE_string(
  'fed_dir',
  None,
  'Folder with the examples of this task, in place of those that load() of '
  '--problem gives; Spark writes one for each worker.',
)


def load_training_splits(
  problem: problem_lib.Problem,
) -> tuple[Examples, Examples]:
  """Returns (train, validation), split.Splits; validation may be empty.

  Raises:
    cli.UsageError: the data are not what a graph can take.
  """
  train = load_train_split(problem)
  validation = load(problem, 'validation') or train.slice(0, 0)
  _check_alike(problem, train, validation, 'validation')
  return train, validation


def load_train_split(problem: problem_lib.Problem) -> Examples:
  """Returns the split.Split to train on.

  Raises:
    cli.UsageError: there is none, or it is not what a graph can take.
  """
  train = load(problem, 'train')
  if train is None or not train.num_examples:
    raise problem.error("load('train') gave nothing to train on")
  return train


def load_judges(
  problem: problem_lib.Problem,
  train: Examples,
  validation: Examples,
) -> dict[str, Examples]:
  """Returns {name: split.Split}, what a training is judged on at its end.

  That is the test and the validation data; the training data if there are
  neither.

  Args:
    train, validation: what `load_training_splits` gave.

  Raises:
    cli.UsageError: there are none that a session can read to their end, or
      they are not like `train`.
  """
  test = load_split(problem, 'test')
  if test is not None:
    _check_alike(problem, train, test, 'test')
  found = {'test': test, 'validation': validation}
  found = {name: s for name, s in found.items() if s and s.num_examples}
  return found or {'train': _check_judges(problem, train)}


def load_judge(problem: problem_lib.Problem) -> tuple[str, Examples]:
  """Returns (name, split.Split), the first of what `load_judges` gives."""
  for name in 'test', 'validation':
    if (found := load_split(problem, name)) is not None:
      return name, found
  return 'train', _check_judges(problem, load_train_split(problem))


def load_split(problem: problem_lib.Problem, name: str) -> Examples | None:
  """Returns the examples of 'test' or 'validation', or None if there are none.

  Raises:
    cli.UsageError: they are not what a graph can take, or a test of nothing.
  """
  found = load(problem, name)
  if found is None or found.num_examples:
    return found
  if name == 'test':
    raise problem.error(
      "load('test') gave no examples: expected some, or None where there is no "
      'such split'
    )
  return None


def _check_judges(
  problem: problem_lib.Problem, train: Examples
) -> split_lib.Split:
  # The largest split: nobody asked to read all of it once more.
  if isinstance(train, streamed.Streamed):
    raise problem.error(
      "load('test') and load('validation') gave nothing to judge the training "
      'by: expected (x, y), or a reader, of one of them'
    )
  return train


def load(problem: problem_lib.Problem, name: str) -> Examples | None:
  """Returns the examples of the split `name`, or None if there are none.

  Returns:
    split.Split, or streamed.Streamed if a reader reads them.

  Raises:
    cli.UsageError: it is not what a graph can take.
  """
  found: Any
  if _FED_DIR.value and problem.is_custom:
    found = array_folder.load(_FED_DIR.value, name)
  elif name == 'train' and hasattr(problem.module, 'stream'):
    num_examples = getattr(problem.module, 'num_examples', None)
    stream = functools.partial(problem.call, 'stream')
    with _reporting(problem, 'stream'):
      return streamed.Streamed(dataset.Reader(num_examples, stream))
  else:
    found = problem.load(name)
  if found is None:
    return None
  with _reporting(problem, 'load'):  # They may be properties that fail.
    is_reader = streamed.is_reader(found)
    is_empty = is_reader and found.num_examples < 1
  if is_empty:
    raise problem.error(f'load({name!r}) gave a reader without an example')
  if is_reader:
    with _reporting(problem, 'load'):
      return streamed.Streamed(found)
  if not isinstance(found, tuple) or len(found) not in (2, 3):
    raise problem.error(
      f'load({name!r}) gave {problem_module.shorten(found)}: expected (x, y), '
      '(x, y, weights), a reader, or None where there is no such split'
    )
  if not problem.is_custom:
    return split_lib.Split(*found)
  try:
    made = split_lib.make(*found)
    if made.weights is not None and not _FED_DIR.value:
      # What one worker is fed may all count for nothing.
      example_weights.check_any('the weights', made.weights)
    return made
  except (TypeError, ValueError) as error:  # A dict may have any keys.
    raise problem.error(f'load({name!r}): {error}') from error


def _reporting(
  problem: problem_lib.Problem, name: str
) -> contextlib.AbstractContextManager[None]:
  """See user_calls.reporting."""
  return user_calls.reporting(problem.describe(), problem.module, name)


def make_batch(
  problem: problem_lib.Problem, num_examples: int
) -> split_lib.Split:
  """Returns the batch that `preprocess` makes of tensors of zeros.

  Reads no file for images; loads the training data of a user's problem.
  """
  if not problem.is_custom:
    return split_lib.Split(*images.make_batch(num_examples))
  train = load_train_split(problem)
  zeros = train.pack(
    [
      tf.zeros([num_examples, *leaf.shape], leaf.dtype)
      for leaf in train.spec.arrays()
    ]
  )
  return zeros.preprocess(problem.preprocess, is_training=True)


def _check_alike(
  problem: problem_lib.Problem, train: Examples, other: Examples, name: str
) -> None:
  # One may have weights, and the other none.
  specs = [each.spec._replace(w=()) for each in (train, other)]
  try:
    tf.nest.assert_same_structure(*map(tuple, specs))
  except (ValueError, TypeError) as error:
    raise problem.error(
      f'load({name!r}) has another structure than the training data'
    ) from error
  mine, theirs = (getattr(s, 'class_names', None) for s in (train, other))
  if mine and theirs and mine != theirs:
    raise problem.error(
      f'load({name!r}) has the classes {", ".join(theirs)}, but the training '
      f'data have {", ".join(mine)}: give all readers the same classes=[...]'
    )
  for (path, mine), theirs in zip(
    split_lib.walk(specs[0]), specs[1].arrays(), strict=True
  ):
    if mine != theirs:
      raise problem.error(
        f'load({name!r}) has {theirs.dtype.name} {theirs.shape.as_list()} as '
        f'{path} where the training data have {mine.dtype.name} '
        f'{mine.shape.as_list()}: give all examples one type and shape, such '
        'as by with_types() of a csv.Reader, and pad those of different lengths'
      )
