"""Whether training can go on from some weights, or has diverged there.

A step's loss is computed from the weights before it, so a checkpoint may hold
weights whose loss is not known. It is computed before they are restored, with
only those rows of large tables that the examples look up. And where a step's
loss is not finite, that of its batch at the first weights tells a loss that
cannot take the batch from weights that have diverged.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import split as split_lib
from distmnist.data import streamed
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoint_reader
from distmnist.tables import key_map, sparse_table, stored_table
from distmnist.training import evaluation
from distmnist.training.problems import problem as problem_lib

if TYPE_CHECKING:
  from distmnist.training import schedule
  from distmnist.training.batches import batch_source
  from distmnist.training.problems import problem_data

_log = logging.getLogger(__name__)

_MAX_EXAMPLES = 100
_NUM_DRAWN = 10
# The most examples of a batch that a line names.
_MAX_NAMED = 8


def without_data(
  problem: problem_lib.Problem, image_shape: tuple[int, ...]
) -> CheckpointCheck:
  """Returns a CheckpointCheck for a program without images, maybe no GPU.

  A sane model has a finite loss for any pixels.

  Args:
    problem: problem.Problem of images.
    image_shape: (height, width, channels).
  """
  images = np.random.default_rng(0).integers(
    256, size=(_NUM_DRAWN, *image_shape), dtype=np.uint8
  )
  labels = np.zeros(_NUM_DRAWN, np.int32)
  config = tf.ConfigProto(device_count={'GPU': 0})
  return CheckpointCheck(problem, split_lib.Split(images, labels), config)


class CheckpointCheck:
  """Computes the loss of some examples from checkpoints, on this machine alone.

  The graph is built only for the first checkpoint: a training that resumes
  nothing pays nothing.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    split: problem_data.Examples,
    config: tf.ConfigProto | None = None,
  ) -> None:
    self._problem = problem
    self._split = split
    self._config = config
    self._graph: tf.Graph | None = None

  def find(self, path: str) -> str | None:
    """Returns what is wrong with the loss, or None if it is finite.

    Args:
      path: a complete checkpoint.

    Raises:
      cli.RunError: it belongs to another model.
    """
    if self._graph is None:
      self._graph = self._build()
    with tf.Session(graph=self._graph, config=self._config) as session:
      session.run(self._others)
      self._restorer.restore(session, path, say=lambda line: None)
      key_map.fill(session)
      wanted = self._tables.ask(session)
      with checkpoint_reader.Reader(path) as reader:
        rows = self._tables.read(reader, wanted)
      loss = float(session.run(self._loss, rows))
    if math.isfinite(loss):
      return None
    return f'the loss computed from it is {loss}'

  def _build(self) -> tf.Graph:
    problem = self._problem
    some = _take_first(self._split)
    self._tables = stored_table.StoredTables()
    with problem_lib.open_graph() as graph:
      with self._tables.scope():
        self._loss = _build_loss(problem, some)
      self._restorer = restoring.Restorer(stored=self._tables)
      # Lookup tables of words, and what a loss counts.
      self._others = tf.tables_initializer(), tf.local_variables_initializer()
    return graph


def _take_first(split: problem_data.Examples) -> split_lib.Split:
  """Returns the examples (split.Split) that a check computes the loss of."""
  chunk_size = evaluation.compute_chunk_size(split.spec.x)
  return split.slice(0, min(_MAX_EXAMPLES, chunk_size))


def _take_batch(
  examples: problem_data.Examples, row: np.ndarray
) -> list[np.ndarray]:
  """Returns the arrays [batch_size, ...] of a batch by a row of StepRows.

  Raises:
    streamed.ReadError: the reader fails.
  """
  if isinstance(examples, streamed.Streamed):
    return examples.take(row)
  return [array[row[1:]] for array in examples.arrays()]


def _build_loss(
  problem: problem_lib.Problem, some: split_lib.Split
) -> tf.Tensor:
  """Returns the loss, a scalar tensor, of `some` examples, a split.Split."""
  batch = some.pack([tf.constant(array) for array in some.arrays()])
  batch = batch.preprocess(problem.preprocess, is_training=False)
  outputs = problem.build(batch.x, is_training=False)
  return problem.loss(batch.y, outputs, batch.weights).mean


class LossCheck:
  """Says why the loss of a worker's step is not finite.

  If the loss of its batch is not finite at the first weights either, which give
  other examples a finite one, the loss cannot take the batch.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    examples: problem_data.Examples,
    source: batch_source.BatchSource,
    plan: schedule.Plan,
    config: tf.ConfigProto | None,
    advice: str,
  ) -> None:
    """To be called in the worker's graph.

    Args:
      examples: the training data.
      source: batch_source.BatchSource of the worker.
      advice: what to do about a training that has diverged.
    """
    self._problem = problem
    self._examples = examples
    self._source = source
    self._slice_size = plan.slice_size
    self._config = config
    self._advice = advice
    # They are too large to be made once more.
    self._has_tables = bool(tf.get_collection(sparse_table.TABLES))

  def explain(self, loss: float, step: int, place: int) -> str:
    """Returns what is wrong, and what to do.

    Args:
      loss: not finite.
      step: the global step after it.
      place: the step's place in the last session.run.
    """
    other = None if self._has_tables else self._compare(place)
    if other is None:
      return f'the loss is {loss}: {cli.DIVERGED}; {self._advice}'
    named = [str(number) for number in self._source.find_row(place)[1:]]
    if len(named) > _MAX_NAMED:
      named[_MAX_NAMED:] = [f'{len(named) - _MAX_NAMED} more']
    return (
      f'the loss of worker {self._source.worker} is {loss} at step {step}, and '
      'is not finite at the first weights either, which give other examples '
      f'{other:.4g}: it is this batch that the loss cannot take (examples '
      f'{", ".join(named)} of the training data): let it divide by no 0, and '
      'take no log of 0'
    )

  def _compare(self, place: int) -> float | None:
    """Returns the loss of other examples if only the batch's is bad."""
    row = self._source.find_row(place)
    try:
      batch = _take_batch(self._examples, row)
      starts = range(0, len(row) - 1, self._slice_size)
      slices = [
        self._examples.pack([a[i : i + self._slice_size] for a in batch])
        for i in starts
      ]
      if all(math.isfinite(self._compute(some)) for some in slices):
        return None
      other = self._compute(_take_first(self._examples))
    except (cli.RunError, tf.errors.OpError, streamed.ReadError) as error:
      _log.info(f'why the loss is not finite is not known: {error}')
      return None
    return other if math.isfinite(other) else None

  def _compute(self, some: split_lib.Split) -> float:
    with problem_lib.open_graph() as graph:
      loss = _build_loss(self._problem, some)
      first = (
        *(tf.global_variables_initializer(), tf.tables_initializer()),
        tf.local_variables_initializer(),
      )
      with tf.Session(graph=graph, config=self._config) as session:
        session.run(first)
        return float(session.run(loss))
