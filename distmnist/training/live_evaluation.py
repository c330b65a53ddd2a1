"""Metrics of a model with sparse tables, whose rows stay on the ps.

The center itself is evaluated, through the session's cluster: each chunk pulls
the table rows that it needs, as a training step does, so a table need not fit
in the memory of the evaluating task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.exchange.center import center as center_lib
from distmnist.logdir import checkpoints
from distmnist.tables import sparse_table
from distmnist.training import evaluation
from distmnist.transport import sharding

if TYPE_CHECKING:
  import numpy as np

  from distmnist.lifecycle import task as task_lib
  from distmnist.training import flag_checks
  from distmnist.training.problems import problem_data


class LiveEvaluation:
  """Metrics of the center at the end, with its tables where they are.

  Attributes:
    values: {name: array}, whole variables and the global step, all but the
      tables on ps; None before `take`.
  """

  def __init__(
    self,
    task: task_lib.Task,
    choice: flag_checks.Choice,
    variables: Iterable[tf.Variable],
    splits: Mapping[str, problem_data.Examples],
  ) -> None:
    """
    Args:
      task: task.Task of a worker, serving when `take` is called.
      variables: the center's, in the default graph.
      splits: {name: split.Split}, what to evaluate on.
    """
    self._task, self._choice, self._splits = task, choice, splits
    self._places = {v.op.name: v.device for v in tf.global_variables()}
    tables = tf.get_collection(sparse_table.TABLES)
    self._tables = tables if task.cluster.num_ps else []
    self._global_step = tf.train.get_global_step()
    self._variables = [
      v for v in variables if not any(v is shard for shard in self._tables)
    ]
    self.values: dict[str, np.ndarray] = {}
    self._found: dict[str, dict[str, float]] | None = None

  def take(self, session: tf.Session) -> None:
    """Fetches the center; computes the metrics now if they need its tables."""
    self.values = checkpoints.fetch_whole(
      session, [*self._variables, self._global_step]
    )
    if self._tables:
      self._found = {
        name: _LiveEvaluator(
          self._task, self._choice, self._places, split
        ).compute_live()
        for name, split in self._splits.items()
      }

  @property
  def has_tables(self) -> bool:
    """Whether the model has more than `values`."""
    return bool(self._tables)

  def compute(self, splits: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns {split: {name: float}}, the metrics on these splits."""
    if self._found:
      return {name: self._found[name] for name in splits}
    return {
      name: make_evaluator(
        self._task, self._choice, self._splits[name]
      ).compute(self.values)
      for name in splits
    }


def make_evaluator(
  task: task_lib.Task, choice: flag_checks.Choice, split: problem_data.Examples
) -> evaluation.Evaluator:
  """Returns the evaluation.Evaluator of a worker, on its machine alone."""
  return evaluation.Evaluator(
    choice.problem, split, task.server_config, _note_chunks(task)
  )


def _note_chunks(task: task_lib.Task) -> Callable[[], None]:
  # So each chunk has --stall_fail_secs, and not the whole of a large split.
  return functools.partial(task.stalls.busy, 'the evaluation')


class _LiveEvaluator(evaluation.Evaluator):
  def __init__(
    self,
    task: task_lib.Task,
    choice: flag_checks.Choice,
    places: Mapping[str, str],
    split: problem_data.Examples,
  ) -> None:
    self._task, self._strategy = task, choice.strategy
    self._places = places
    super().__init__(choice.problem, split, on_chunk=_note_chunks(task))

  @property
  def _placement(self) -> Any:
    def find_ps(op: tf.Operation) -> int:
      return tf.DeviceSpec.from_string(self._places[op.name]).task

    return self._task.cluster.device_setter(find_ps)

  @contextlib.contextmanager
  def _building(self) -> Iterator[None]:
    """Gives variables the names and places that they have in training."""
    cluster = self._task.cluster
    # What is judged are the weights themselves, not rounded by --wire_dtype.
    exact = dataclasses.replace(cluster, wire_dtype=tf.float32.name)
    center = center_lib.Center(exact)
    center.rows.makes_rows = False
    with (
      tf.device(self._placement),
      sharding.sharded_by_flags(cluster.num_ps, self._strategy.max_shard_bytes),
      center.scope(),
    ):
      yield

  def _make_session(
    self, graph: tf.Graph, config: tf.ConfigProto | None
  ) -> tf.Session:
    del config
    return tf.Session(self._task.target, graph, self._task.session_config)

  def compute_live(self) -> dict[str, float]:
    """Returns {name: float}, the metrics over all examples."""
    with self._session:
      return self._compute()
