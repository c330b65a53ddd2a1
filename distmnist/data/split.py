"""Examples as nests of arrays: what a problem loads, and parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.data import example_weights, mixed_columns

_RAGGED = (
  'an array has rows of different lengths or of a type that no graph has, such '
  'as text beside numbers: pad them to one length, give the columns of a table '
  'as a dict, or give numbers, bool, str or bytes'
)

# What a session gives for tensors that are not dense.
_NOT_DENSE = tf.SparseTensorValue, tf.ragged.RaggedTensorValue


class Split(NamedTuple):
  """Examples, what is to be learnt from them, and how much each counts.

  Attributes:
    x, y: nests (dicts, tuples, lists) of NumPy arrays [n, ...], all of the same
      n.
    w: float32 array [n], the weights of the examples; (), an empty nest, if
      all count the same.
  """

  x: Any
  y: Any
  w: Any = ()

  @property
  def weights(self) -> np.ndarray | tf.Tensor | None:
    """The array (or tensor) of the weights, or None."""
    return None if isinstance(self.w, tuple) else self.w

  @property
  def num_examples(self) -> int:
    """The n of the arrays."""
    return len(self.arrays()[0])

  @property
  def spec(self) -> Split:
    """A Split of the tf.TensorSpec of one example, without n."""
    return self.pack(
      tf.TensorSpec(array.shape[1:], tf.as_dtype(array.dtype))
      for array in self.arrays()
    )

  def arrays(self) -> list[Any]:
    """Returns the arrays of x, of y and of w as a flat list, in this order."""
    return tf.nest.flatten(tuple(self))

  def pack(self, values: Iterable[Any]) -> Split:
    """Returns a Split with other values in place of its arrays.

    Args:
      values: in the order of `arrays`.
    """
    return Split(*tf.nest.pack_sequence_as(tuple(self), list(values)))

  def slice(self, start: int, stop: int) -> Split:
    """Returns the examples from start to stop - 1 as a Split of views."""
    return self.pack([array[start:stop] for array in self.arrays()])

  def preprocess(
    self, function: Callable[..., tuple[Any, Any]], is_training: bool
  ) -> Split:
    """Returns a batch as a model takes it, a Split; its weights stay.

    Args:
      function: callable(x, y, is_training) -> (x, y), see problem.py.
    """
    x, y = function(self.x, self.y, is_training=is_training)
    return self._replace(x=x, y=y)

  def identify(self) -> Iterator[bytes | np.ndarray]:
    """Yields bytes or arrays that tell these examples from others."""
    for array in self.arrays():
      if array.dtype == object:  # bytes of any length.
        yield b'\0'.join(array.ravel())
      else:
        yield np.ascontiguousarray(array)


def make(
  x: Any,
  y: Any,
  w: Any = (),
  numbers: Sequence[int] | np.ndarray | None = None,
) -> Split:
  """Returns the Split of nests of whatever NumPy can turn into an array.

  Dicts and tuples are nests, a list is an array. float64 becomes float32, which
  is what a graph computes with, numbers get this machine's byte order, and text
  becomes bytes in UTF-8.

  Args:
    x, y: the nests.
    w: what can be turned into an array [n] of numbers; () for no weights.
    numbers: what the examples are called in an error; by default 0, 1, 2, ...

  Raises:
    ValueError: something is not an array, the arrays have no examples or
      different numbers of them, a number is not finite, or w is not one number
      for each example.
  """
  w = w if isinstance(w, tuple) else make_weights(w)
  given = Split(_convert_lists(x), _convert_lists(y), w)
  leaves = given.arrays()
  if not leaves:
    raise ValueError('it has no arrays')
  found = given.pack([_make_array(leaf, numbers) for leaf in leaves])
  sizes = {len(array) for array in found.arrays()}
  if len(sizes) > 1:
    raise ValueError(
      f'its arrays have {", ".join(map(str, sorted(sizes)))} examples: '
      'expected the same number in each'
    )
  return found


def make_weights(values: Any) -> np.ndarray:
  """Returns weights as float32 [n].

  Raises:
    ValueError: they are not one number for each example, finite and 0 or more.
  """
  found = np.asarray(values)
  if found.ndim != 1 or found.dtype.kind not in 'biuf':
    raise ValueError(
      f'the weights are {found.dtype.name} of shape {list(found.shape)}: '
      'expected [n], a number for each example'
    )
  return example_weights.convert('the weights', found)


def walk(nest: Any, path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields (path, leaf) in the order of tf.nest.flatten; a/b is b in a."""
  if isinstance(nest, dict):
    parts = [(key, nest[key]) for key in sorted(nest)]
  elif hasattr(nest, '_fields'):
    parts = zip(nest._fields, nest, strict=True)
  elif isinstance(nest, (tuple, list)):
    parts = enumerate(nest)
  else:
    yield path, nest
    return
  for key, part in parts:
    yield from walk(part, f'{path}/{key}' if path else str(key))


def _convert_lists(nest: Any) -> Any:
  """Returns the nest with an array in place of each list."""
  if isinstance(nest, _NOT_DENSE):  # A tuple, but of no arrays of examples.
    raise ValueError(
      f'a {type(nest).__name__}: expected dense arrays, of one length in all '
      'examples, as from tf.sparse.to_dense or to_tensor(shape=...)'
    )
  if isinstance(nest, dict):
    return {name: _convert_lists(value) for name, value in nest.items()}
  if isinstance(nest, tuple):
    return tuple(map(_convert_lists, nest))
  if not isinstance(nest, list):
    return nest
  try:
    return np.asarray(nest)
  except ValueError as error:
    raise ValueError(_RAGGED) from error


def _make_array(
  leaf: Any, numbers: Sequence[int] | np.ndarray | None
) -> np.ndarray:
  array = mixed_columns.make_array(leaf)
  if array.dtype.kind == 'U':
    array = np.char.encode(array, 'utf-8')
  if array.dtype.kind == 'S':
    array = array.astype(object)
  if array.dtype.kind == 'O' and array.ndim:  # Like a text column of pandas.
    array = _encode(array)
  if not array.dtype.isnative:
    # A py_func would take its bytes as they are, in the wrong order.
    array = array.astype(array.dtype.newbyteorder('='))
  if array.dtype == np.float64:
    with np.errstate(over='ignore'):  # The check below names it.
      array = array.astype(np.float32)
  if not array.ndim:
    raise ValueError(
      f'{" ".join(repr(leaf).split())[:60]} is a single value: expected an '
      'array of one value per example; sparse data has to be made dense'
    )
  if array.dtype.kind == 'O' and not _has_only_bytes(array):
    raise ValueError(_RAGGED)
  try:
    dtype = tf.as_dtype(array.dtype)
  except TypeError as error:
    raise ValueError(
      f'an array of {array.dtype.name}: expected numbers, bool, str or bytes'
    ) from error
  is_float = dtype.is_floating or dtype.is_complex
  if is_float and not np.isfinite(array).all():
    row = int(np.argwhere(~np.isfinite(array))[0][0])
    row = row if numbers is None else numbers[row]
    raise ValueError(f'example {row} has a number that is not finite')
  return array


def _encode(array: np.ndarray) -> np.ndarray:
  """Returns an array of objects with bytes in place of each str."""
  found = np.empty_like(array)
  for place, value in np.ndenumerate(array):
    found[place] = value.encode() if isinstance(value, str) else value
  return found


def _has_only_bytes(array: np.ndarray) -> bool:
  return all(isinstance(value, bytes) for value in array.flat)


def describe_specs(tensors: Mapping[str, tf.Tensor | tf.TensorSpec]) -> str:
  """Returns 'x float32 [n, 2], lengths int64 [n]' of tensors [n, ...]."""
  return ', '.join(
    f'{name} {tensor.dtype.name} {_describe_shape(tensor.shape)}'
    for name, tensor in tensors.items()
  )


def _describe_shape(shape: tf.TensorShape) -> str:
  if shape.rank is None:
    return 'of any shape'
  sizes = ['?' if size is None else str(size) for size in shape.as_list()]
  if sizes[:1] == ['?']:
    sizes[0] = 'n'
  return f'[{", ".join(sizes)}]'
