"""Values from a user's files, in the type that a model's input has."""

import numpy as np


def convert(name, array, spec):
  """Returns an array [n, ...] in the type of its input, with no value changed.

  Floating-point numbers are rounded to the input's precision.

  Raises:
    ValueError: it has another shape, or values that the input cannot take.
  """
  dtype = spec.dtype
  if not spec.shape.is_compatible_with(array.shape):
    raise ValueError(f'{name} has the shape {list(array.shape)}')
  kind = array.dtype.kind
  if kind == 'O':
    _check_objects(name, array)
  if dtype.name == 'string':
    is_text = kind in 'US' or (
      kind == 'O' and all(isinstance(x, str) for x in array.flat)
    )
    if not is_text:
      raise ValueError(f'{name} is {array.dtype.name}, not text')
    texts = array.astype(object)
    for text in texts.flat:
      if isinstance(text, str):
        text.encode()  # Half a surrogate pair is no text.
    return texts
  wanted = dtype.as_numpy_dtype
  if kind == 'O':
    array, kind = _parse(name, array, dtype), None
  elif kind not in 'biuf':
    raise ValueError(f'{name} is {array.dtype.name}, not a number')
  try:
    with np.errstate(all='ignore'):
      found = array.astype(wanted)
  except OverflowError as error:
    raise ValueError(f'{name} has values that are no {dtype.name}') from error
  if dtype.is_floating or dtype.is_complex:
    is_same = np.array_equal(np.isinf(found), np.isinf(array))
  else:
    is_same = np.array_equal(found, array)
  if not is_same:
    raise ValueError(f'{name} has values that are no {dtype.name}')
  return found


def _check_objects(name, array):
  """Raises ValueError unless all are text, or integers of any size."""
  for value in array.flat:
    if not isinstance(value, str | int):
      what = 'null' if value is None else 'an object'
      raise ValueError(f'{name} is or has {what}')


def _parse(name, texts, dtype):
  """Returns the texts as numbers."""
  words = {'true': 1, 'false': 0} if dtype.name == 'bool' else {}
  number = int if dtype.is_integer else parse_float
  found = []
  for place, text in np.ndenumerate(texts):
    try:
      if '_' in str(text):  # 12_3 and 1_23 are one number to Python.
        raise ValueError(f'{text!r} is no number')
      found.append(number(words.get(str(text).lower(), text)))
    except (ValueError, OverflowError) as error:
      raise ValueError(f'example {place[0]}: {name}: {error}') from error
  return np.array(found).reshape(texts.shape)


def parse_float(text):
  """Returns a float.

  Raises:
    ValueError: it is no number, or so large that Python makes it infinite.
  """
  found = float(text)
  if abs(found) == np.inf and 'inf' not in str(text).lower():
    raise ValueError(f'{text} is too large')
  return found
