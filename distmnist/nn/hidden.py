"""The hidden layers of a net, whole or cut vertically.

Cut vertically, a layer has its units in slices, one for each ps in turn, and
the net is parallel in its model, not only in its data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.nn import layers
from distmnist.transport import variable_lists

_VERTICAL_SLICES = flags.DEFINE_integer(
  'vertical_slices',
  1,
  'mlp, dnn, cnn, vgg19: slices of the units of each hidden dense layer. With '
  'async_sgd, sync_sgd and ssp each is computed on the ps that holds it: '
  'activations are sent instead of weights, and the byte counts leave them '
  'out. With other rules each worker has a copy of all slices.',
  lower_bound=1,
)


def make(
  sizes: Sequence[int],
  activate: Callable[[tf.Tensor], tf.Tensor],
  initializer: str = 'glorot',
  dropout_rate: float = 0,
  name: str = 'hidden',
) -> Callable[[tf.Tensor, bool], tf.Tensor]:
  """Reads --vertical_slices; returns a function that builds dense layers.

  Args:
    sizes: the units of each layer.
    activate: callable(sums) -> outputs, such as tf.nn.relu.
    initializer: one of layers.INITIALIZERS.
    dropout_rate: the share of units that a training step drops.
    name: the first layer is NAME1.

  Returns:
    build(inputs, is_training) -> float32 [batch, sizes[-1]]
      inputs: float32 [batch, n].
      is_training: bool. Evaluation has all slices on one device.

  Raises:
    cli.UsageError: a layer has fewer units than slices are asked for.
  """
  num_slices = _VERTICAL_SLICES.value
  if num_slices > min(sizes):
    raise cli.UsageError(
      f'--vertical_slices={num_slices}, but a hidden layer has {min(sizes)} '
      'units: expected at most that many'
    )

  def build(inputs: tf.Tensor, is_training: bool) -> tf.Tensor:
    slices = [inputs]
    for i, units in enumerate(sizes, start=1):
      n = num_slices if is_training else 1
      beside = tf.colocate_with if n > 1 else contextlib.nullcontext
      sums = split_dense(slices, units, n, f'{name}{i}', initializer)
      slices = []
      for part in sums:
        with beside(part):
          outputs = activate(part)
          slices.append(layers.dropout(outputs, dropout_rate, is_training))
    return slices[0] if len(slices) == 1 else tf.concat(slices, 1)

  return build


def split_dense(
  inputs: Sequence[tf.Tensor],
  units: int,
  num_slices: int,
  name: str,
  initializer: str = 'glorot',
) -> list[tf.Tensor]:
  """A dense layer whose units are computed in separate slices.

  A slice has its columns of the weights and is computed where they are: on
  their ps, unless the rule keeps a copy on the worker.

  Args:
    inputs: float32 [batch, n_i], slices of the previous layer.
    num_slices: at most `units`.
    name: of the layer. Its variables are those of `dense`.
    initializer: one of layers.INITIALIZERS.

  Returns:
    A list of float32 [batch, units_j], each on the device of its slice.
  """

  if num_slices == 1:
    return [layers.dense(inputs[0], units, name, initializer)]

  def get_slices(
    kind: str, shape: Sequence[int], initializer: Any
  ) -> list[tf.Variable]:
    variable = tf.get_variable(
      kind,
      shape,
      initializer=initializer,
      partitioner=tf.fixed_size_partitioner(num_slices, len(shape) - 1),
      collections=[tf.GraphKeys.GLOBAL_VARIABLES, variable_lists.IN_PLACE],
    )
    return [variable] if tf.is_tensor(variable) else list(variable)

  num_inputs = sum(part.shape.as_list()[-1] for part in inputs)
  with tf.variable_scope(name) as scope:
    weights = get_slices(
      'weights',
      [num_inputs, units],
      layers.make_initializer(initializer, f'{scope.name}/weights'),
    )
    biases = get_slices('biases', [units], tf.zeros_initializer())
    outputs = []
    for part, bias in zip(weights, biases, strict=True):
      with tf.colocate_with(part):
        whole = inputs[0] if len(inputs) == 1 else tf.concat(inputs, 1)
        outputs.append(tf.nn.bias_add(tf.matmul(whole, part), bias))
    return outputs
