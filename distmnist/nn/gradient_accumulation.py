"""Gradient accumulation: the gradients of K slices of a batch, one by one.

  g = (1/K) sum_k g_k

g_k is the gradient of the mean loss of slice k. Where the slices have weights
w_k, as their losses are divided by a mask, it is

  g = sum_k w_k g_k / sum_k w_k

No op of slice k + 1 that
depends on its examples begins before g_1 + ... + g_k is known, so memory holds
the activations of one slice at a time, and one sum of gradients.

An optimizer does this when it is given the mean loss of the slices, so a
strategy knows nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.transport import sums

# (gradient, variable); no gradient where the loss does not reach it.
Pairs = list[tuple[tf.Tensor | None, tf.Variable]]


class SlicedLoss(NamedTuple):
  """The loss of a batch, and of each of its slices.

  Attributes:
    mean: float32 scalar tensor, the mean of `losses`.
    losses: float32 scalar tensors, one per slice.
    gates: one per slice: all of the slice's examples come from it. It can be
      made to wait for more ops; see `wait`.
    weights: float32 scalar tensors, how much each slice counts; None if all
      count alike.
  """

  mean: tf.Tensor
  losses: list[tf.Tensor]
  gates: list[tf.Operation]
  weights: list[tf.Tensor] | None = None


def build_mean(
  losses: list[tf.Tensor],
  gates: list[tf.Operation],
  weights: list[tf.Tensor] | None = None,
) -> tf.Tensor:
  """Returns the mean of `losses`, whose gradient is taken slice by slice.

  Args:
    losses, gates, weights: see SlicedLoss.
  """
  mean = sums.build_mean(losses, weights)
  sliced = SlicedLoss(mean, losses, gates, weights)
  graph_record.current().sliced_losses.append(sliced)
  return mean


def wait(gate: tf.Operation, ops: list[tf.Operation]) -> None:
  """Makes a gate wait for `ops`, a list, which must not depend on it."""
  tf_internals.add_control_inputs(gate, ops)


def compute_mean(
  compute_gradients: Callable[..., Pairs],
  loss: tf.Tensor,
  *args: Any,
  **kwargs: Any,
) -> Pairs:
  """Returns the (gradient, variable) pairs of a loss, slice by slice.

  Args:
    compute_gradients: callable(loss, *args, **kwargs) -> list of (gradient,
      variable), whose gradients are tensors or None.
    loss: float32 scalar tensor; another one than that of `build_mean` is no
      mean of slices.
    *args, **kwargs: what `compute_gradients` takes besides.
  """
  known = graph_record.current().sliced_losses
  sliced = next((each for each in known if each.mean is loss), None)
  if sliced is None:
    return compute_gradients(loss, *args, **kwargs)
  totals = []
  weights = sliced.weights or [None] * len(sliced.losses)
  for slice_loss, gate, weight in zip(
    sliced.losses, sliced.gates, weights, strict=True
  ):
    wait(gate, [total.op for total in totals if total is not None])
    pairs = compute_gradients(slice_loss, *args, **kwargs)
    gradients, variables = zip(*pairs, strict=True)
    before = totals or [None] * len(gradients)
    totals = [
      _add(total, gradient, weight)
      for total, gradient in zip(before, gradients, strict=True)
    ]
  n = len(sliced.losses)
  of_all = sliced.weights and sums.add_up(sliced.weights)
  means = [
    _divide(total, n, of_all, like)
    for total, like in zip(totals, gradients, strict=True)
  ]
  return list(zip(means, variables, strict=True))


def _add(
  total: tf.Tensor | None, gradient: tf.Tensor | None, weight: tf.Tensor | None
) -> tf.Tensor | None:
  """Returns a sum of gradients with one more; None for a None of the first."""
  if gradient is None:
    return None
  with tf.device(gradient.device):
    wide = sums.widen(gradient)
    if weight is not None:
      wide = sums.weigh(wide, weight)
    return wide if total is None else total + wide


def _divide(
  total: tf.Tensor | None,
  n: int,
  weight: tf.Tensor | None,
  like: tf.Tensor | None,
) -> tf.Tensor | None:
  if total is None or like is None:
    return None
  with tf.device(total.device):
    mean = total / n if weight is None else sums.divide(total, weight)
    return tf.cast(mean, like.dtype)
