"""Whether the functions of a user's problem fit each other and its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors, server
from distmnist.common import cli
from distmnist.data import metric_total
from distmnist.nn import optimizer_checks
from distmnist.training.problems import (
  label_shapes,
  problem_spec,
  table_checks,
  variable_checks,
)
from distmnist.training.problems import problem as problem_lib

if TYPE_CHECKING:
  from distmnist.data import split as split_lib
  from distmnist.training.problems import problem_data
  from distmnist.transport import strategy as strategy_lib

FLAGS = flags.FLAGS
# At about as many steps of a training a problem's own rate is tried.
_NUM_TRIED = 100
# What a problem's own rate takes the place of.
_RATE_FLAGS = (
  'learning_rate',
  'local_learning_rate',
  'table_learning_rate',
  'lr_schedule',
  'lr_warmup_steps',
  'worker_learning_rates',
)


def check_graph(
  problem: problem_lib.Problem,
  split: problem_data.Examples,
  batch_size: int,
  strategy: strategy_lib.Strategy | None = None,
) -> None:
  """Builds a training step's graph, so that mistakes show at once.

  Args:
    problem: the images' is known to fit.
    split: split.Split of the training data.
    strategy: None if it does not matter.

  Raises:
    cli.UsageError: the functions do not fit each other or the data, or make
      variables that cannot be shared or that the rule cannot train.
  """
  if not problem.is_custom:
    problem.check_best(['accuracy', 'loss'])
    return
  problem_spec.check(problem, split.spec.x)
  noted = variable_checks.Noted('build()', problem.error)
  with problem_lib.open_graph():
    batch = _build_batch(problem, split, batch_size, is_training=True)
    with noted.scope():
      outputs = problem.build(batch.x, is_training=True)
      built = len(tf.get_default_graph().get_operations())
      values = problem.loss(batch.y, outputs, batch.weights).values
      metrics = problem.metrics(batch.y, outputs, batch.weights)
      label_shapes.check(problem, batch.y, outputs, batch_size, built)
    noted.check_made(_find_variables())
    noted.check_trainable()
    _check_any_is_trained(problem)
    if strategy:
      table_checks.check(strategy, problem.groups)
      optimizer_checks.check_variables(strategy, problem.groups)
    trained = _find_shapes()
  if not problem.has_keras_model:
    _check_evaluation(problem, split, trained)
  _check_best(problem, {'loss', *metrics})
  for name, tensor in {**metrics, 'loss': values}.items():
    if isinstance(tensor, metric_total.Total) or tensor is None:
      continue
    if tensor.shape[0] != batch_size:
      number, advice = tensor.shape[0], ''
      if number is None:
        number = 'an unknown number of'
        advice = ' (tf.boolean_mask leaves some out, tf.where does not)'
      raise problem.error(
        f'{name!r} has {number} values for {batch_size} examples: expected one '
        f'an example{advice}'
      )


def _build_batch(
  problem: problem_lib.Problem,
  split: problem_data.Examples,
  batch_size: int | None,
  is_training: bool,
) -> split_lib.Split:
  """Returns a batch (split.Split) that is fed, as the model takes it."""
  batch = split.pack(
    [
      tf.placeholder(leaf.dtype, [batch_size, *leaf.shape])
      for leaf in split.spec.arrays()
    ]
  )
  batch = batch.preprocess(problem.preprocess, is_training)
  for variable in _find_variables():
    raise problem.error(
      f'preprocess() makes the variable {variable.op.name!r}, but runs on each '
      'worker separately: make it in build()'
    )
  return batch


def _find_variables() -> list[tf.Variable]:
  """Returns the variables that the problem has made in the default graph."""
  global_step = tf.train.get_global_step()
  return [v for v in tf.global_variables() if v is not global_step]


def _find_shapes() -> dict[str, list[int]]:
  """Returns {name: shape} of the variables that the problem has made."""
  return {v.op.name: v.shape.as_list() for v in _find_variables()}


def _check_evaluation(
  problem: problem_lib.Problem,
  split: problem_data.Examples,
  trained: Mapping[str, list[int]],
) -> None:
  """Checks that an evaluation finds its variables among the trained ones.

  Args:
    problem, split: see `check_graph`.
    trained: {name: shape}.
  """
  with problem_lib.open_graph():
    batch = _build_batch(problem, split, None, is_training=False)
    outputs = problem.build(batch.x, is_training=False)
    problem_lib.build_sums(problem, batch.y, outputs, batch.weights)
    for name, shape in _find_shapes().items():
      if trained.get(name) != shape:
        known = trained.get(name, 'no such variable')
        raise problem.error(
          f'build() makes the variable {name!r} of {shape} where is_training '
          f'is False, and {known} where it is True: make the same in both'
        )


def check_rate(
  problem: problem_lib.Problem, last_step: int | None, epochs_per_update: float
) -> None:
  """Tries a problem's own learning rate at steps of the training.

  Args:
    last_step: None if it is not known.
    epochs_per_update: the epochs that a global step takes in.

  Raises:
    cli.UsageError: the rate cannot be computed, is no number of 0 or more, or
      is given by a flag, too.
  """
  with problem_lib.open_graph():
    step = tf.placeholder(tf.int64, [])
    epoch = tf.placeholder(tf.float32, [])
    rate = problem.learning_rate(step, epoch)
    if rate is None:
      return
    for flag in _RATE_FLAGS:
      if FLAGS[flag].value != FLAGS[flag].default:
        raise problem.error(
          f'has a learning_rate(step, epoch) of its own: leave out --{flag}'
        )
    last = last_step or 1
    steps = {0, *(10**i for i in range(19) if 10**i < last), last}
    steps |= {last * i // _NUM_TRIED for i in range(_NUM_TRIED)}
    with tf.Session(config=server.make_server_config()) as session:
      session.run(tf.global_variables_initializer())
      for t in sorted(steps):
        feed = {step: t, epoch: t * epochs_per_update}
        _check_number(problem, t, lambda feed=feed: session.run(rate, feed))


def _check_number(
  problem: problem_lib.Problem, step: int, compute: Callable[[], Any]
) -> None:
  try:
    found = compute()
  except tf.errors.OpError as error:
    reason = errors.explain(error)
    raise problem.error(
      f'learning_rate() fails at step {step}: {reason}'
    ) from error
  if not (found.ndim == 0 and 0 <= found < float('inf')):
    raise problem.error(
      f'learning_rate() gives {found} at step {step}: expected a number of 0 '
      'or more'
    )


def _check_best(problem: problem_lib.Problem, names: set[str]) -> None:
  try:
    known = problem.finish(dict.fromkeys(names, 0.5))
  except cli.UsageError:
    return  # It may still work with means of real data.
  problem.check_best(known)


def _check_any_is_trained(problem: problem_lib.Problem) -> None:
  if not tf.trainable_variables():
    raise problem.error(
      'the model has no trainable weight'
      if problem.has_keras_model
      else 'build() makes no trainable variable: make them by tf.Variable'
    )
