"""Metrics of a model with sparse tables, whose rows stay on the ps.

What is evaluated is the center itself, through the session's cluster: of a
table the rows of each chunk are pulled, as a step of the training does, and so
it need not fit the memory of who evaluates.
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.exchange import sharding
from distmnist.exchange.center import center as center_lib
from distmnist.exchange.tables import sparse_table
from distmnist.training import evaluation


class LiveEvaluation:
  """Evaluates the center of the default graph, if it has tables on a ps."""

  def __init__(self, task, choice):
    """
    Args:
      task: task.Task of a worker, which serves when it is to compute.
      choice: flag_checks.Choice.
    """
    self._task, self._choice = task, choice
    self._places = {v.op.name: v.device for v in tf.global_variables()}
    tables = tf.get_collection(sparse_table.TABLES)
    self._tables = tables if task.cluster.num_ps else []

  def has(self, variable):
    """Whether `variable` is a shard of a table that stays where it is."""
    return any(variable is shard for shard in self._tables)

  def compute(self, splits):
    """Returns the metrics of each of `splits`, a list of {name: float}.

    None where there is no table, and whole variables are evaluated.
    """
    if not self._tables:
      return None
    return [
      _LiveEvaluator(
        self._task, self._choice, self._places, split
      ).compute_live()
      for split in splits
    ]


class _LiveEvaluator(evaluation.Evaluator):
  def __init__(self, task, choice, places, split):
    self._task, self._strategy = task, choice.strategy
    self._places = places
    super().__init__(choice.problem, split)

  @contextlib.contextmanager
  def _building(self):
    """Variables are those of the training: of its names, where it has them."""
    cluster = self._task.cluster

    def find_ps(op):
      return tf.DeviceSpec.from_string(self._places[op.name]).task

    with (
      tf.device(cluster.device_setter(find_ps)),
      sharding.sharded_by_flags(cluster.num_ps, self._strategy.max_shard_bytes),
      center_lib.Center(cluster).scope(),
    ):
      yield

  def _make_session(self, graph, config):
    del config
    target = self._task.server.target
    return tf.Session(target, graph, self._task.session_config)

  def compute_live(self):
    """Returns {name: float}, the metrics over all examples."""
    with self._session:
      return self._compute()
