"""A learning rate for each worker of synchronous SGD."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from absl import flags

from distmnist.common import cli
from distmnist.nn import optimizers
from distmnist.tables import tables_apart

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


_WORKER_LEARNING_RATES = flags.DEFINE_list(
  'worker_learning_rates',
  [],
  'sync_sgd: one learning rate per worker, such as 0.1,0.0001. Only with '
  '--optimizer=sgd; --learning_rate is then only their common unit.',
)


def factor_from_flags(cluster: Cluster, num_replicas: int) -> float | None:
  """Returns the factor for this worker's gradients, a float or None.

  Args:
    num_replicas: the number of gradients per update.

  Raises:
    cli.UsageError: the rates do not fit the cluster or the optimizer.
  """
  words = _WORKER_LEARNING_RATES.value
  if not words:
    return None
  given, n = f'--worker_learning_rates={",".join(words)}', cluster.num_workers
  try:
    rates = [float(word) for word in words]
  except ValueError:
    rates = []
  if len(rates) != n or not all(0 <= rate < math.inf for rate in rates):
    raise cli.UsageError(
      f'{given}: expected {n} learning rates of 0 or more, one a worker'
    )
  optimizer, base = optimizers.base_rate_from_flags()
  if optimizer != 'sgd' or not base:
    raise cli.UsageError(
      f'{given} needs plain sgd and a --learning_rate above 0, not {optimizer} '
      f'at {base:g}: else no step is in proportion to the gradient'
    )
  if num_replicas != n:
    raise cli.UsageError(
      f'{given} needs one gradient a worker in each update: leave '
      '--replicas_to_aggregate alone'
    )
  if tables_apart.is_wanted():
    raise cli.UsageError(
      f'{given} does not go with --table_strategy, by which the gradients of '
      'tables are applied at --learning_rate: leave one of them out'
    )
  if optimizers.are_tables_different():
    raise cli.UsageError(
      f'{given} does not go with --table_optimizer or --table_learning_rate: '
      'leave one of them out'
    )
  return rates[cluster.task_index] / base * n
