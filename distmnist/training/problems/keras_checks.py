"""What no update rule can train of a Keras model.

`fit` asks in the process of its caller, before anything starts, and so does
each task; so this module does without TensorFlow's graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distmnist import tf_internals

if TYPE_CHECKING:
  import keras

_OWN_STEPS = 'train_step', 'test_step', 'compute_loss', 'compute_metrics'


def check(model: keras.Model) -> None:
  """Checks a model; what only its weights tell, once it is built.

  Raises:
    ValueError: it has a training step of its own, a layer that keeps a state
      between batches or computes in float16, or a weight with a constraint.
  """
  import keras  # noqa: PLC0415  Only for Keras models.

  for name in _OWN_STEPS:
    if getattr(type(model), name) is not getattr(keras.Model, name):
      raise ValueError(
        f'{type(model).__name__} has a {name}() of its own, which no strategy '
        'calls: leave it out, and write loss(y, outputs) and metrics(y, '
        'outputs) in a file with make_model(), or add_loss in a layer'
      )
  for layer in tf_internals.list_layers(model):
    if getattr(layer, 'stateful', False):
      raise ValueError(
        f'the layer {layer.name!r} is stateful: what one batch leaves to the '
        'next would depend on which worker has them, and an evaluation has '
        'batches of its own size: leave stateful=True out, and the batch size'
      )
    if layer.compute_dtype == 'float16':
      raise ValueError(
        f'the layer {layer.name!r} computes in float16, in which small '
        'gradients become 0 unless the loss is scaled, as `model.fit` does '
        "and no update rule here: expected 'mixed_bfloat16', or float32"
      )
  for variable in model.weights:
    if variable.constraint is not None:
      raise ValueError(
        f'the weight {variable.path!r} has a constraint, which no update rule '
        'keeps: leave it out'
      )
