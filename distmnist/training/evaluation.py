"""Metrics of given values or of a checkpoint, on this machine alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow.compat.v1 as tf

from distmnist.data import input_pipeline, metric_total
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoints
from distmnist.tables import key_map, row_reuse, shard_slices, table_saver
from distmnist.training import averages
from distmnist.training.problems import problem as problem_lib

if TYPE_CHECKING:
  import numpy as np

  from distmnist.training.problems import problem_data

# Chunks whose activations fit in the cache or, for large examples, in memory:
# this many MNIST images, fewer if they are larger.
CHUNK_SIZE = 250
_CHUNK_NUMBERS = CHUNK_SIZE * 28 * 28
# Of a metric over several batches: list of a metric_total.Total's states.
_Sum = TypeVar('_Sum', metric_total.Mean, list)


class Evaluator:
  """Metrics on a split, in a graph and a session of its own on this machine.

  It takes the values of the variables from any source, so that no cluster has
  to keep running for it.
  """

  def __init__(
    self,
    problem: problem_lib.Problem,
    split: problem_data.Examples,
    config: tf.ConfigProto | None = None,
    on_chunk: Callable[[], None] = lambda: None,
  ) -> None:
    """Builds the graph.

    Args:
      on_chunk: called before each chunk of examples.
    """
    self._on_chunk = on_chunk
    self._problem = problem
    chunk_size = compute_chunk_size(split.spec.x)
    self._num_chunks = -(-split.num_examples // chunk_size)
    with problem_lib.open_graph(self._placement) as graph:
      with self._building():
        chunk, self._start = input_pipeline.build_chunks(
          split, problem.preprocess, chunk_size
        )
        outputs = problem.build(chunk.x, is_training=False)
        self._sums = problem_lib.build_sums(
          problem, chunk.y, outputs, chunk.weights
        )
      self._variables = tf.global_variables()
      self._saved = averages.name_all(self._variables)
      self._restorer = restoring.Restorer(self._saved)
      # Lookup tables of words, and the counters of metrics.
      others = tf.tables_initializer(), tf.local_variables_initializer()
    self._session = self._make_session(graph, config)
    self._session.run(others)

  # What tf.device takes, where the variables are; None is here.
  _placement: Any = None

  def _building(self) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which the model is built."""
    return contextlib.nullcontext()

  def _make_session(
    self, graph: tf.Graph, config: tf.ConfigProto | None
  ) -> tf.Session:
    return tf.Session(graph=graph, config=config)

  def compute(self, values: Mapping[str, Any]) -> dict[str, float]:
    """Returns {name: float}, the metrics over all examples.

    Args:
      values: by the names of variables; see checkpoints.fetch_whole. With
        --ema_decay it has the averages, too.
    """
    self._session.run(
      [v.initializer for v in self._variables],
      {v.initializer.inputs[1]: values[n] for n, v in self._saved.items()},
    )
    key_map.fill(self._session)
    return self._compute()

  def compute_checkpoint(self, path: str) -> dict[str, float]:
    """Returns the metrics of the checkpoint `path`, {name: float}.

    Raises:
      cli.RunError: the checkpoint is unreadable or belongs to another model.
    """
    self._restorer.restore(self._session, path)
    key_map.fill(self._session)
    return self._compute()

  def _compute(self) -> dict[str, float]:
    self._session.run(self._start)
    totals = {}
    # Not until the data end: an op of the user's may say that they do.
    for _ in range(self._num_chunks):
      self._on_chunk()
      sums = self._session.run(self._sums)
      for name, value in sums.items():
        totals[name] = _add(totals.get(name), value)
    return self._problem.finish(
      {
        name: total if isinstance(total, list) else total.compute()
        for name, total in totals.items()
      }
    )


def _add(total: _Sum | None, value: _Sum) -> _Sum:
  """Returns the sum of `total`, which is None at first, and `value`.

  Means are added in double precision, lists of states as they are.
  """
  if not isinstance(value, list):
    return value + (total or metric_total.Mean(0, 0))
  return [a + b for a, b in zip(total, value, strict=True)] if total else value


def compute_chunk_size(x: Any) -> int:
  """Returns how many examples are evaluated at once.

  Args:
    x: nest of tf.TensorSpec for one example.
  """
  numbers = sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(x))
  return min(CHUNK_SIZE, max(1, _CHUNK_NUMBERS // max(1, numbers)))


def build_fetch() -> Callable[[tf.Session], dict[str, np.ndarray]]:
  """Returns a callable, session -> {name: array}, all that a checkpoint holds.

  It fetches from the default graph, while others train.
  """
  # The key of a row made meanwhile must not be fetched without its values.
  keys, variables = key_map.get_all_keys(), tf.global_variables()

  def fetch(session: tf.Session) -> dict[str, np.ndarray]:
    with row_reuse.held(session):
      return checkpoints.fetch_whole(session, variables, first=keys)

  return fetch


def describe_fetch() -> str | None:
  """Returns a line on what `build_fetch` would take from the ps.

  None if the variables of the default graph are not on ps.
  """
  variables = [
    v
    for v in tf.global_variables()
    if tf.DeviceSpec.from_string(v.device).job == 'ps'
  ]
  if not variables:
    return None
  num_bytes = sum(map(shard_slices.count_bytes, variables))
  of_tables = sum(map(shard_slices.count_bytes, table_saver.find_shards()))
  more = ''
  if of_tables:
    more = (
      f', of which {of_tables:,} are sparse tables and what the optimizer '
      'keeps beside them'
    )
  return (
    'each validation (--validation_steps) fetches all that a checkpoint holds '
    f'to worker 0: {num_bytes:,} bytes{more}'
  )
