"""Whether the functions of a user's problem fit each other, and its data."""

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training.problems import problem_spec, table_checks


def check_graph(problem, split, batch_size, strategy=None):
  """Builds a training step's graph, so that mistakes are known at once.

  Args:
    problem: problem.Problem; that of the images is known to fit.
    split: split.Split of the training data.
    batch_size: int.
    strategy: strategy.Strategy, or None if it is not of interest.

  Raises:
    cli.UsageError: the functions do not fit each other or the data, or make
      variables that could not be shared, or that the rule cannot train.
  """
  if not problem.is_custom:
    return
  problem_spec.check(problem, split.spec.x)
  made = []

  def note(getter, name, *args, **kwargs):
    made.append(name)
    return getter(name, *args, **kwargs)

  with tf.Graph().as_default():
    batch = split.pack(
      [
        tf.placeholder(leaf.dtype, [batch_size, *leaf.shape])
        for leaf in split.spec.arrays()
      ]
    )
    x, y = problem.preprocess(*batch, is_training=True)
    with tf.variable_scope(tf.get_variable_scope(), custom_getter=note):
      outputs = problem.build(x, is_training=True)
    _, values = problem.loss(y, outputs)
    metrics = problem.metrics(y, outputs)
    _check_variables(problem, made)
    if strategy:
      table_checks.check(strategy)
  _check_best(problem, {'loss', *metrics})
  for name, tensor in (metrics | {'loss': values}).items():
    if tf.is_tensor(tensor) and tensor.shape[0] not in (None, batch_size):
      raise problem.error(
        f'{name!r} has {tensor.shape[0]} values for {batch_size} examples: '
        'expected one an example'
      )


def _check_best(problem, names):
  try:
    known = problem.finish(dict.fromkeys(names, 0.5))
  except cli.UsageError:
    return  # It may do with the means of the data.
  problem.choose(known)


def _check_variables(problem, made):
  for variable in tf.global_variables():
    if variable.op.name not in made and problem.has_keras_model:
      raise problem.error(
        f'the model makes the variable {variable.op.name!r} while it is '
        'called: make its layers and their variables in __init__ or build'
      )
    if variable.op.name not in made:
      raise problem.error(
        f'build() makes the variable {variable.op.name!r} by tf.Variable or by '
        'a Keras layer: make it by tf.get_variable, which puts it on a ps'
      )
  if not tf.trainable_variables():
    raise problem.error(
      'the model has no trainable weight'
      if problem.has_keras_model
      else 'build() makes no trainable variable: make them by tf.get_variable'
    )
