"""`keras.layers.Embedding` layers of a Keras model as sparse tables.

The layer looks rows up in its weight, which is normally a variable like others:
all of it is pulled in each step. If the weight is used for nothing else, the
same rows come from a table (tables/sparse_table.py), with no change to
the model.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import tf_internals
from distmnist.nn import layers as layers_lib
from distmnist.tables import sparse_table
from distmnist.transport import fed_initial_values

if TYPE_CHECKING:
  import keras

FLAGS = flags.FLAGS

_SPARSE_TABLES = flags.DEFINE_enum(
  'sparse_tables',
  'auto',
  ['auto', 'large', 'all', 'none'],
  'Which keras.layers.Embedding layers of a Keras model are sparse tables, of '
  'which a step moves only the rows of its batch. large: those of a million '
  'numbers or more; auto: likewise, if --strategy takes tables and the weights '
  'are then the same as without, so none with --weight_decay or a lazy '
  '--optimizer such as adam; all: small ones, too. A weight that is used for '
  'anything else stays a variable.',
)
_LARGE = 1_000_000


def settle(conflict: str) -> None:
  """Makes --sparse_tables=auto mean none if other flags rule out tables.

  Args:
    conflict: why they do; empty if they do not.
  """
  if _SPARSE_TABLES.value == 'auto' and conflict:
    FLAGS.sparse_tables = 'none'


def are_wanted() -> bool:
  """Whether --sparse_tables is not none."""
  return _SPARSE_TABLES.value != 'none'


def find(
  model: keras.Model, x: Any, **mode: bool
) -> dict[int, keras.layers.Embedding]:
  """Returns {id of a weight: its layer} for the weights that can be tables.

  Those of less than a million numbers are left out unless --sparse_tables=all.

  Args:
    model: built.
    x: nest of tensors [n, ...] as it takes them.
    **mode: arguments of its `call` besides x.
  """
  layers = {
    id(layer.embeddings): layer
    for layer in tf_internals.list_layers(model)
    if _can_be_table(layer)
  }
  return _leave_out_others(layers, model, x, mode) if layers else {}


def _can_be_table(layer: keras.Layer) -> TypeGuard[keras.layers.Embedding]:
  import keras  # noqa: PLC0415  Only for Keras models.

  kind = keras.layers.Embedding
  least = 1 if _SPARSE_TABLES.value == 'all' else _LARGE
  return (
    isinstance(layer, kind)
    and type(layer).call is kind.call
    and layer.built
    and layer.trainable
    and not (layer.quantization_mode or layer.lora_enabled)
    and layer.embeddings_regularizer is None
    and layer.embeddings.dtype == 'float32'
    and layer.input_dim * layer.output_dim >= least
  )


def _leave_out_others(
  layers: dict[int, keras.layers.Embedding],
  model: keras.Model,
  x: Any,
  mode: Mapping[str, bool],
) -> dict[int, keras.layers.Embedding]:
  """Returns the `layers` whose weight is used only for their lookups."""
  used = set()
  with tf.Graph().as_default():

    def look_up(layer: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
      # In a loop or a branch, where a table cannot be used.
      if tf.get_default_graph().building_function:
        used.add(id(layer.embeddings))
      return tf.zeros([*ids.shape, layer.output_dim])

    weights, others = (
      [tf.placeholder(v.dtype, v.shape) for v in variables]
      for variables in (
        model.trainable_variables,
        model.non_trainable_variables,
      )
    )
    # The model computes with the outputs of these ops.
    given = [tf.identity(weight) for weight in weights]
    x = tf.nest.map_structure(lambda t: tf.placeholder(t.dtype, t.shape), x)
    with looking_up(layers.values(), look_up):
      model.stateless_call(given, others, x, **mode)
    for variable, value in zip(model.trainable_variables, given, strict=True):
      if value.consumers():
        used.add(id(variable))
  return {key: layer for key, layer in layers.items() if key not in used}


@contextlib.contextmanager
def looking_up(
  layers: Iterable[keras.layers.Embedding],
  look_up: Callable[[keras.layers.Embedding, tf.Tensor], tf.Tensor],
) -> Iterator[None]:
  """Makes layers return look_up(layer, ids) instead of their own rows.

  Args:
    look_up: callable(layer, ids [...]) -> rows float32 [..., output_dim].
  """
  layers = list(layers)
  for layer in layers:
    # Not with the layer's own __setattr__, which would track it.
    object.__setattr__(layer, 'call', functools.partial(_call, layer, look_up))
  try:
    yield
  finally:
    for layer in layers:
      object.__delattr__(layer, 'call')


def _call(
  layer: keras.layers.Embedding,
  look_up: Callable[[keras.layers.Embedding, tf.Tensor], tf.Tensor],
  inputs: tf.Tensor,
) -> tf.Tensor:
  ids = inputs if inputs.dtype.is_integer else tf.cast(inputs, tf.int32)
  return tf.cast(look_up(layer, ids), layer.compute_dtype)


def name_rows(name: str) -> str:
  """Returns what a checkpoint calls the table of the weight `name`."""
  return f'{name}/rows'


def make(
  layer: keras.layers.Embedding, name: str, load: Callable[[], np.ndarray]
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the table of a layer in the default graph.

  Args:
    name: its weight's.
    load: callable() -> array [rows, width], the table's initial values.

  Returns:
    callable(ids [...]) -> rows float32 [..., width].
  """
  scope = tf.get_variable_scope().name
  fed_initial_values.give(
    f'{scope}/{name_rows(name)}'.lstrip('/'), lambda: _arrange(load())
  )
  look_up = functools.partial(
    layers_lib.embedding,
    num_rows=layer.input_dim,
    width=layer.output_dim,
    name=name,
    initializer=tf.zeros_initializer(),
  )
  look_up(tf.zeros([0], tf.int64))  # Now: layers must not make variables.
  return look_up


def _arrange(values: np.ndarray) -> np.ndarray:
  """Returns a weight's rows at the positions that they have in a table."""
  rows = np.zeros(
    [sparse_table.count_positions(len(values)), values.shape[1]], values.dtype
  )
  rows[sparse_table.find_positions(np.arange(len(values)), len(values))] = (
    values
  )
  return rows


def read(layer: keras.layers.Embedding, rows: np.ndarray) -> np.ndarray:
  """Returns a layer's weight [rows, width] from a table [positions, width]."""
  num_rows = layer.input_dim
  return rows[sparse_table.find_positions(np.arange(num_rows), num_rows)]
