"""An exchange with the center in every T-th local step, and none between.

A step without its exchange is shorter: exchange/steps/fused_steps.py leaves it
out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.transport import strategy, wire

if TYPE_CHECKING:
  from distmnist.exchange.copies.local_copies import LocalCopies


class Exchange(NamedTuple):
  """What `every` has built; a step without it is shorter: see fused_steps.py.

  Attributes:
    period: T > 1.
    step: int64 scalar tensor; the exchange is due where T divides it.
    outputs: what the rest of the step uses of the exchange.
    without: their values where it is not due.
  """

  period: int
  step: tf.Tensor
  outputs: list[tf.Tensor]
  without: list[tf.Tensor]


def every(
  period: int,
  step: tf.Tensor,
  exchange: Callable[[], tuple[tf.Tensor, tf.Tensor]],
  known_step: tf.Variable,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Runs `exchange` in each step that `period` divides.

  Args:
    period: T.
    step: int64 scalar tensor, which the exchange waits for; the same one for
      all exchanges of a rule.
    exchange: returns (global_step, staleness), int64 scalar tensors.
    known_step: int64 local variable, the global_step reported in the other
      steps; set here.

  Returns:
    (global_step, staleness, is_due); staleness is -1 without an exchange.
  """

  def do_exchange() -> tuple[tf.Tensor, tf.Tensor]:
    new_step, staleness = wire.bring_scalars(exchange())
    return known_step.assign(new_step), staleness

  def do_nothing() -> tuple[tf.Tensor, tf.Tensor]:
    return known_step.read_value(), tf.constant(-1, tf.int64)

  if period == 1:
    with tf.control_dependencies([step]):
      results = do_exchange()
    with tf.device(known_step.device):
      return *map(tf.convert_to_tensor, results), tf.constant(True)
  with tf.device(known_step.device):
    is_due = tf.equal(step % period, 0)
  results = tf.cond(is_due, do_exchange, do_nothing)
  with tf.device(known_step.device):
    # Ops of their own, which a copy of the step can replace by others.
    outputs = [tf.identity(result) for result in (*results, is_due)]
    with tf.control_dependencies([is_due]):
      without = [*map(tf.convert_to_tensor, do_nothing()), tf.constant(False)]
  graph_record.current().exchanges.append(
    Exchange(period, step, outputs, without)
  )
  return tuple(outputs)


def get_all() -> list[Exchange]:
  """Returns the Exchanges of the default graph."""
  return list(graph_record.current().exchanges)


def build_update(
  copies: LocalCopies,
  period: int,
  step: tf.Tensor,
  exchange: Callable[[], tuple[tf.Tensor, tf.Tensor]],
  known_step: tf.Variable,
) -> strategy.Update:
  """Exchanges the whole center in each step that `period` divides.

  Args:
    period, step, exchange, known_step: see `every`.
  """
  train_op, staleness, is_due = every(period, step, exchange, known_step)
  num_bytes = copies.count_bytes_if(is_due)
  return strategy.Update(train_op, staleness, num_bytes, num_bytes)
