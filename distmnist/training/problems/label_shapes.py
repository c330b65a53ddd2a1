"""Whether a loss or metric pairs each label with the output of its example.

`y - outputs` of shapes [n] and [n, 1] has the shape [n, n]: every label with
every output. Its mean is a scalar like any loss, whose gradient teaches the
net the mean of the labels. Keras's own losses make the shapes equal; a
function of the user's does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.training.problems import problem_errors

if TYPE_CHECKING:
  from distmnist.training.problems import problem as problem_lib


def check(
  problem: problem_lib.Problem,
  y: Any,
  outputs: Any,
  batch_size: int,
  built: int,
) -> None:
  """Checks the ops that loss() and metrics() have added to the default graph.

  Args:
    y, outputs: nests of tensors [batch_size, ...].
    built: how many ops the graph had before them.

  Raises:
    cli.UsageError: an op broadcasts labels and outputs to [n, n].
  """
  if batch_size == 1:
    return
  shapes = [batch_size], [batch_size, 1]
  of_y, of_outputs = _refs(y), _refs(outputs)
  for op in tf.get_default_graph().get_operations()[built:]:
    inputs = [*op.inputs]
    if len(inputs) == 2 and _get_shapes(op.outputs) == [[batch_size] * 2]:
      found = _get_shapes(inputs)
      are_mixed = found in ([*shapes], [*reversed(shapes)])
      for label, output in (inputs, reversed(inputs)) if are_mixed else ():
        is_label = label.ref() in of_y and label.ref() not in of_outputs
        if is_label and output.ref() in of_outputs:
          raise problem.error(_explain(problem, op, label, output))
    for known in of_y, of_outputs:
      if any(each.ref() in known for each in inputs):
        known.update(each.ref() for each in op.outputs)


def _explain(
  problem: problem_lib.Problem,
  op: tf.Operation,
  label: tf.Tensor,
  output: tf.Tensor,
) -> str:
  path = os.path.realpath(problem.module.__file__)
  place = problem_errors.locate(op, path) or 'in loss() or metrics()'
  shapes = {1: '[n]', 2: '[n, 1]'}
  return (
    f'{place}: labels of shape {shapes[label.shape.ndims]} and outputs of '
    f'shape {shapes[output.shape.ndims]} broadcast to [n, n], each label with '
    'every output: give both the same shape, as with tf.squeeze(outputs, 1)'
  )


def _refs(nest: Any) -> set[Any]:
  leaves = tf.nest.flatten(nest, expand_composites=True)
  return {leaf.ref() for leaf in leaves if tf.is_tensor(leaf)}


def _get_shapes(tensors: Iterable[tf.Tensor]) -> list[list[int | None] | None]:
  """Returns the shapes, lists of int; None for one that is not known."""
  return [
    x.shape.as_list() if x.shape.ndims is not None else None for x in tensors
  ]
