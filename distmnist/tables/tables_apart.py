"""Sparse tables that are trained by a rule of their own: --table_strategy.

The split of Persia (Lian et al. 2021, arXiv 2111.05897): few rows are in the
batches of two workers at once, so their staleness does little harm, while all
workers use the rest of the model in each step. With g_r the gradient of the
rows r of a worker's batch, in each of its steps,

  pull x~_r;  x~_r <- Opt(x~_r, g_r)

on the ps, at once, whatever --strategy does with the rest.
No copy of a row is kept, so rules with copies of the model can train tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import graph_record

if TYPE_CHECKING:
  from distmnist.tables import table_rows
  from distmnist.transport import strategy

_TABLE_STRATEGY = flags.DEFINE_enum(
  'table_strategy',
  None,
  ['async_sgd'],
  'Update rule of the sparse tables, if not --strategy: async_sgd applies the '
  'gradients of rows as they arrive, under any --strategy that has ps.',
)


def is_wanted() -> bool:
  """Whether --table_strategy asks for it."""
  # Also where a rule is made by its class, and no flags were parsed.
  return bool(flags.FLAGS[_TABLE_STRATEGY.name].value)


def keep(rows: table_rows.Rows, gradients: Sequence[tf.Tensor]) -> None:
  """Keeps the gradients of a step, one for each of `rows.views`."""
  graph_record.current().gradients_apart.append((rows, gradients))


def add_to(
  update: strategy.Update, make_optimizer: Callable[..., tf.train.Optimizer]
) -> strategy.Update:
  """Returns an update that also covers the tables of the default graph.

  Args:
    update: of all that is in no table.
    make_optimizer: see strategy.Strategy.minimize.
  """
  for rows, gradients in graph_record.current().gradients_apart:
    with tf.name_scope('tables_apart'):
      pairs = rows.push(gradients)
      with tf.device(update.train_op.device):
        applied = make_optimizer().apply_gradients(pairs)
        with tf.control_dependencies([applied]):
          train_op = tf.identity(update.train_op)
      pulled, pushed = rows.count_bytes()
    update = update._replace(
      train_op=train_op,
      bytes_pulled=update.bytes_pulled + pulled,
      bytes_pushed=update.bytes_pushed + pushed,
    )
  return update
