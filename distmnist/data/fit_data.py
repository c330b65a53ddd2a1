"""What distmnist.fit is given to train on, as arrays that the tasks can read.

Arrays, DataFrames and data sets of TensorFlow become arrays, and what no
training could take is refused here, in the words of the call, before a process
is started. pandas is never imported: a DataFrame is what has `columns`, a data
set what has `cardinality`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distmnist.data import array_folder, example_weights, mixed_columns

if TYPE_CHECKING:
  import keras

Nest = Any  # An array [n, ...], or a dict, tuple or list of arrays.
# (x, y) or (x, y, w); w, float32 [n], says how much each example counts.
Examples = tuple
Splits = dict[str, Examples]  # 'train', and maybe 'validation' and 'test'.

_KINDS = {'b': 'bool', 'i': 'integers', 'u': 'integers', 'f': 'floats'}


def make_splits(
  model: keras.Model,
  x: Any,
  y: Any = None,
  validation_data: Any = None,
  validation_split: float | None = None,
  test_data: Any = None,
  sample_weight: Any = None,
  class_weight: Mapping[int, float] | None = None,
) -> tuple[Splits, int | None]:
  """Returns what to train on and to judge by, and the size of a batch of x.

  That is None if x is not a data set of batches.

  Args:
    model: a DataFrame's columns are its inputs if they have these names.
    x: array [n, ...], a dict, tuple or list of arrays, a DataFrame, or a
      tf.data.Dataset of (x, y) or (x, y, w), whose y is None here.
    y: array [n, ...] or Series.
    validation_data: (x, y) or (x, y, w), or a data set, to judge by.
    validation_split: the part of x and y, their last examples, to judge by.
    test_data: as validation_data, to judge by at the end.
    sample_weight: [n], how much each example of x counts.
    class_weight: {class: how much an example of it counts in training}; 1 for
      those that it lacks.

  Raises:
    ValueError: something has no value, or the parts do not fit each other.
  """
  if validation_data is not None and validation_split:
    raise ValueError('validation_data and validation_split: expected one')
  x, y, sample_weight, batch_size = _read('x', x, y, sample_weight)
  train = take(model, 'x', x, y, sample_weight)
  splits = {'train': train}
  if validation_split:
    splits = _cut(train, validation_split)
    for name, (_, _, *weights) in splits.items():
      for array in weights:
        example_weights.check_any(f'sample_weight of the {name} part', array)
  for name, given in ('validation', validation_data), ('test', test_data):
    if is_dataset(given):
      splits[name] = take(model, f'{name}_data', given)
    elif isinstance(given, (tuple, list)) and len(given) in (2, 3):
      splits[name] = take(model, f'x of {name}_data', *given)
    elif given is not None:
      raise ValueError(
        f'{name}_data: expected (x, y), (x, y, weights) or a tf.data.Dataset'
      )
  _check_inputs(model, splits['train'][0])
  for name in [*splits][1:]:
    _check_alike(f'{name}_data', splits['train'], splits[name])
  if class_weight is not None:
    has_weights = len(splits['train']) > 2
    if has_weights:
      raise ValueError(
        'class_weight and sample_weight: expected one; for both give their '
        'product as sample_weight'
      )
    x, y = splits['train']
    splits['train'] = x, y, weigh_classes(y, class_weight)
  return splits, batch_size


def take(
  model: keras.Model, called: str, x: Any, y: Any = None, w: Any = None
) -> Examples:
  """Returns (x, y) or (x, y, w) as arrays, checked.

  Args:
    model: see make_splits.
    called: what an error calls x.
    x, y, w: see make_splits; w are the weights, or None.

  Raises:
    ValueError: see make_splits.
  """
  x, y, w, _ = _read(called, x, y, w)
  if hasattr(x, '__next__') or hasattr(x, 'num_batches'):
    raise ValueError(
      f'{called} is a {type(x).__name__}: expected arrays, a DataFrame or a '
      'tf.data.Dataset of known size, whose examples have numbers'
    )
  if y is None:
    raise ValueError(
      f'there is no y to {called}: expected the labels, or a tf.data.Dataset '
      'of (x, y)'
    )
  of = called.removeprefix('x') if called[:1] == 'x' else f' of {called}'
  parts = {called: _name_columns(model, called, x), f'y{of}': y}
  if w is not None:  # A list of numbers is no nest here.
    parts[f'sample_weight{of}'] = _make_plain(w, f'sample_weight{of}')
  nests = []
  for name, nest in parts.items():
    if not array_folder.flatten(nest)[1]:
      raise ValueError(f'{name} has no array')
    for column, values in _walk(name, nest):
      _check_column(column, values)
    nests.append(array_folder.map_arrays(_make_array, nest))
  sizes = [
    (name, len(array))
    for (name, _), nest in zip(parts.items(), nests, strict=True)
    for array in array_folder.flatten(nest)[1]
  ]
  if len({size for _, size in sizes}) > 1:
    said = ' and '.join(dict.fromkeys(f'{n} has {size:,}' for n, size in sizes))
    raise ValueError(
      f'{said} examples: expected the same number in each; of a list of lists '
      'make one array'
    )
  if not sizes[0][1]:
    raise ValueError(f'{called} has no example')
  arrays, outputs = array_folder.flatten(nests[1])[1], _count_outputs(model)
  if len(arrays) > 1 or outputs > 1:
    found = f'y{of} has {len(arrays)} arrays'
    if outputs > 1:
      found = f'the model has {outputs} outputs'
    raise ValueError(
      f'{found}, and fit trains models of one output: for several write a file '
      'with make_model(), loss(y, outputs) and metrics(y, outputs) for '
      'distmnist.run, see docs/keras.md'
    )
  if w is not None:
    nests[2] = _make_weights(f'sample_weight{of}', nests[2])
  return tuple(nests)


def _read(
  called: str, x: Any, y: Any, w: Any
) -> tuple[Any, Any, Any, int | None]:
  """Returns (x, y, w, the size of a batch), those of a data set if x is one."""
  if not is_dataset(x):
    return x, y, w, None
  if y is not None or w is not None:
    raise ValueError(
      f'{called} is a data set, which has labels and weights itself: expected'
      ' no y and no sample_weight beside it'
    )
  examples, batch_size = read_dataset(x, called)
  x, y, w = (*examples, None)[:3]
  return x, y, w, batch_size


def _check_alike(called: str, train: Examples, other: Examples) -> None:
  """Raises ValueError if other examples have another type or shape."""
  for side, mine, theirs in zip('xy', train, other, strict=False):
    names, arrays = array_folder.flatten(mine)
    others, found = array_folder.flatten(theirs)
    if names != others:
      continue  # array_folder.write says what is expected.
    for name, a, b in zip(names or [side], arrays, found, strict=True):
      if _describe(a) != _describe(b):
        path = side if names is None else f'{name} of {side}'
        raise ValueError(
          f'{called} has {_describe(b)} as {path} where {side} has '
          f'{_describe(a)}: expected the same of all examples'
        )


def _describe(array: np.ndarray) -> str:
  """Returns the shape and the kind of a column's examples."""
  kind = 'text' if array.dtype.kind in 'SU' else _KINDS.get(array.dtype.kind)
  return f'{[*array.shape[1:]]} of {kind or array.dtype.name}'


def _check_inputs(model: keras.Model, x: Nest) -> None:
  """Raises ValueError if x has other arrays than a model that knows its own.

  Or arrays with other axes; Keras itself adds or drops a last axis of one.
  """
  names, arrays = array_folder.flatten(x)
  inputs = getattr(model, 'inputs', None) or []
  if isinstance(x, dict):
    by_name = _get_inputs(model)
    inputs = [by_name.get(name) for name in names]
  elif inputs and len(inputs) != len(arrays):
    raise ValueError(
      f'the model takes {len(inputs)} arrays as x, which is {len(arrays)}'
    )
  for name, tensor, array in zip(names or ['x'], inputs, arrays, strict=False):
    if tensor is None:
      continue
    wanted, found = [*tensor.shape[1:]], [*array.shape[1:]]
    if not _fits(wanted, found):
      path = 'x' if names is None else f'{name} of x'
      raise ValueError(f'the model takes {wanted} as {path}, which is {found}')


def _fits(wanted: list[int | None], found: list[int]) -> bool:
  """Whether Keras takes examples of one shape for those of another."""
  if len(wanted) == len(found):
    return all(a in (None, b) for a, b in zip(wanted, found, strict=True))
  shorter, longer = sorted((wanted, found), key=len)
  return len(longer) == len(shorter) + 1 and longer[-1] == 1


def _cut(train: Examples, part: float) -> Splits:
  """Returns the splits of which the second has the last `part` of `train`."""
  number = len(array_folder.flatten(train[0])[1][0])
  end = math.floor(number * (1 - part))  # Keras's own formula.
  if not 0 < end < number:
    raise ValueError(
      f'validation_split={part:g} of {number} examples: expected a part between'
      ' 0 and 1 that leaves some to train on and some to judge by'
    )
  return {
    name: tuple(
      array_folder.map_arrays(operator.itemgetter(chosen), nest)
      for nest in train
    )
    for name, chosen in (
      ('train', slice(end)),
      ('validation', slice(end, None)),
    )
  }


def weigh_classes(
  y: np.ndarray, class_weight: Mapping[int, float]
) -> np.ndarray:
  """Returns the weights float32 [n] of examples by their classes, as Keras.

  Args:
    y: labels [n], [n, 1], or one-hot [n, classes].
    class_weight: {class: weight}; 1 for those that it lacks.

  Raises:
    ValueError: no class of it occurs, or its weights are none.
  """
  y = np.asarray(array_folder.flatten(y)[1][0])
  is_known = hasattr(class_weight, 'items') and all(
    isinstance(key, (int, np.integer)) for key in class_weight
  )
  if not is_known or y.dtype.kind not in 'biuf':
    raise ValueError(
      f'class_weight={str(class_weight)[:60]} for labels of {y.dtype.name}: '
      'expected {class: weight}, the classes as they are numbered in y'
    )
  if y.ndim > 1:
    y = y.argmax(-1) if y.shape[-1] > 1 else y[..., 0]
  classes = np.round(y).astype(np.int64)
  if class_weight and not np.isin(classes, list(class_weight)).any():
    # Some may be too rare to be in these examples. With none of them the
    # labels are numbered in another way, and the weights would do nothing.
    raise ValueError(
      f'class_weight={str(class_weight)[:60]}: none of these classes is in y, '
      f'whose labels are {classes.min()} to {classes.max()}: expected the '
      'classes as they are numbered there'
    )
  weights = np.ones(classes.shape, np.float32)
  for key, weight in class_weight.items():
    called, found = f'class_weight[{key}]', np.asarray(weight)
    if found.ndim or found.dtype.kind not in 'biuf':
      raise ValueError(f'{called} is {str(weight)[:40]}: expected a number')
    weights[classes == key] = example_weights.convert(called, found)
  return example_weights.check_any('class_weight', weights)


def check_labels(model: keras.Model, loss: Any, splits: Splits) -> None:
  """Checks the loss of a built model, and that y has what it takes.

  y only of losses of Keras whose labels are classes.

  Args:
    model: built.
    loss: what it is compiled with.
    splits: as from make_splits.

  Raises:
    ValueError: there is none, or it is a sum over a batch; y has text, or
      labels outside the classes.
  """
  if loss is None:
    raise ValueError(
      "the model is compiled without a loss: expected loss='mse' or the like"
    )
  loss = _find_loss(loss)
  if loss is None:
    return
  if getattr(loss, 'reduction', None) == 'sum':
    raise ValueError(
      "the model is compiled with a loss of reduction='sum', which depends on "
      'how large a batch is: expected a mean, and a larger learning rate'
    )
  name = getattr(loss, 'name', None) or loss.__name__
  shape: tuple = getattr(model, 'output_shape', ())
  is_one = isinstance(shape, tuple) and shape and isinstance(shape[-1], int)
  for split, (_, y, *_) in splits.items():
    y = array_folder.flatten(y)[1][0]
    called = 'y' if split == 'train' else f'y of the {split} data'
    if y.dtype.kind in 'US':
      raise ValueError(
        f'{called} is text, such as {str(y.flat[0])[:40]!r}, and the loss '
        'takes numbers: number the classes, as by np.unique(y, '
        'return_inverse=True)'
      )
    if name == 'binary_crossentropy':
      _refuse_labels(called, y, (y < 0) | (y > 1), 'the loss', '0 and 1')
    elif name == 'sparse_categorical_crossentropy' and is_one:
      if y.ndim == len(shape) and y.shape[-1] == shape[-1] > 1:
        raise ValueError(
          f'{called} is of shape {[*y.shape]}, one-hot, and the loss takes '
          "numbers: compile with 'categorical_crossentropy', or give "
          'y.argmax(-1)'
        )
      wrong = (y < 0) | (y >= shape[-1]) | (y != np.floor(y))
      wrong &= y != getattr(loss, 'ignore_class', None)
      _refuse_labels(
        *(called, y, wrong, f'the model gives {shape[-1]} classes'),
        f'whole numbers from 0 to {shape[-1] - 1}',
      )
    elif (
      name == 'categorical_crossentropy'
      and is_one
      and (y.ndim < 2 or y.shape[-1] != shape[-1])
    ):
      raise ValueError(
        f'{called} is of shape {[*y.shape]}, and the model gives {shape[-1]} '
        f'classes: expected [n, {shape[-1]}], one-hot; for numbers of classes '
        "compile with 'sparse_categorical_crossentropy'"
      )


def _find_loss(loss: Any) -> Any:
  """Returns the function or object that Keras takes a loss for.

  None if it is not one of Keras's own.
  """
  from keras import losses  # noqa: PLC0415  Only for a Keras model.

  if isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
    [loss] = loss.values() if isinstance(loss, dict) else loss
  try:
    loss = losses.get(loss)
  except (TypeError, ValueError):  # Its shapes choose, as for 'crossentropy'.
    return None
  made = loss if hasattr(loss, '__name__') else type(loss)
  return loss if getattr(made, '__module__', '').startswith('keras.') else None


def _refuse_labels(
  called: str, y: np.ndarray, wrong: np.ndarray, why: str, expected: str
) -> None:
  if wrong.any():
    found = np.unique(y[wrong]).tolist()
    raise ValueError(
      f'{called} has {_enumerate(found)} as labels of {int(wrong.sum()):,} '
      f'examples, and {why}: expected {expected}'
    )


def _enumerate(values: Sequence[float]) -> str:
  texts = [f'{value:g}' for value in values[:5]]
  return ', '.join(texts) + (' ...' if len(values) > 5 else '')


def is_dataset(x: Any) -> bool:
  """Whether it is a tf.data.Dataset."""
  return hasattr(x, 'cardinality') and hasattr(x, 'element_spec')


def read_dataset(dataset: Any, called: str) -> tuple[Examples, int | None]:
  """Returns the arrays of a tf.data.Dataset, read once, element by element.

  And the size of its first batch, None if it has single examples.

  Args:
    dataset: of (x, y) or (x, y, w), batches as for Keras's fit or, where y has
      no axis, single examples.
    called: what an error calls it.

  Raises:
    ValueError: it has no known size, or elements of another kind.
  """
  size = int(dataset.cardinality())
  if size < 0:
    raise ValueError(
      f'{called} is a data set '
      + (
        'without an end: leave repeat() out, as epochs says how often it is '
        'read'
        if size == -1
        else 'whose size is not known: say it by '
        'tf.data.experimental.assert_cardinality, or give arrays'
      )
    )
  spec = dataset.element_spec
  if not isinstance(spec, tuple) or len(spec) not in (2, 3):
    raise ValueError(
      f'{called} is a data set of other elements than (x, y) or (x, y, '
      'weights): expected those, in batches or one by one'
    )
  is_single = array_folder.flatten(spec[1])[1][0].shape.rank == 0
  if not is_single:
    _check_batches(spec, called)
  join = np.stack if is_single else np.concatenate
  elements = [*dataset.as_numpy_iterator()]
  if not elements:
    raise ValueError(f'{called} has no example')
  try:
    examples = tuple(
      _join([element[i] for element in elements], join)
      for i in range(len(spec))
    )
    first = array_folder.flatten(elements[0][1])[1][0]
    return examples, None if is_single else len(first)
  except (AttributeError, ValueError) as error:
    raise ValueError(
      f'{called}: its elements do not make one array ({error}): expected dense '
      'tensors of one shape'
    ) from error


def _check_batches(spec: tuple, called: str) -> None:
  """Raises ValueError if these are no batches, by the sizes that are known."""
  shapes = [
    leaf.shape.as_list()
    for part in spec
    for leaf in array_folder.flatten(part)[1]
    if getattr(getattr(leaf, 'shape', None), 'rank', None) is not None
  ]
  sizes = {shape[0] if shape else 0 for shape in shapes} - {None}
  if len(sizes) > 1 or 0 in sizes:
    raise ValueError(
      f'{called} is a data set of arrays of shapes '
      f'{" and ".join(map(str, shapes))}, which are no batches: expected the '
      'same number of examples in each; batch(...) it first'
    )


def _join(
  parts: Sequence[Any], join: Callable[[Sequence[Any]], np.ndarray]
) -> Nest:
  """Returns the nest of arrays that the nests `parts` are parts of."""
  first = parts[0]
  if isinstance(first, dict):
    return {name: _join([part[name] for part in parts], join) for name in first}
  if isinstance(first, tuple):
    return tuple(
      _join([part[i] for part in parts], join) for i in range(len(first))
    )
  found = join(parts)
  if found.dtype.kind in 'SO':  # bytes, which text is in TensorFlow.
    return np.char.decode(found.astype('S'), 'utf-8')
  return found


def is_frame(x: Any) -> bool:
  """Whether it is a DataFrame, of pandas or the like."""
  return hasattr(x, 'columns') and hasattr(x, 'items')


def _name_columns(model: keras.Model, called: str, x: Any) -> Any:
  """Returns x as the model takes it, a DataFrame as itself or as a dict.

  Of a dict, and of a DataFrame for a model with several inputs, it has what
  these are called: given more, Keras would take the first ones by name.

  Raises:
    ValueError: the model takes one array, and there are columns of text; or it
      has inputs that are no columns.
  """
  if isinstance(x, dict):
    inputs = [*_get_inputs(model)]
    return _pick(called, x, inputs) if inputs else x
  if not is_frame(x):
    return x
  columns = {str(name): column for name, column in x.items()}
  inputs = _find_inputs(model)
  if inputs:
    return _pick(called, columns, inputs)
  others = [
    name
    for name, column in columns.items()
    if _make_plain(column, f'column {name} of {called}').dtype.kind
    not in 'biuf'
  ]
  if not others:
    return x
  if inputs is None:
    return columns
  raise ValueError(
    f'{", ".join(others[:5])} of {called}: not numbers, and the model takes '
    'one array: encode them (pandas.get_dummies), or give a model with an '
    'input for each column, named as it is'
  )


def _count_outputs(model: keras.Model) -> int:
  """Returns how many outputs a model has, 1 if only its code says that."""
  return len(getattr(model, 'outputs', None) or [0])


def _find_inputs(model: keras.Model) -> list[str] | None:
  """Returns the names of a model's inputs.

  [] if it takes one array, None if only its code says what it takes.
  """
  if type(model).__name__ == 'Sequential':
    return []
  if not getattr(model, 'inputs', None):
    return None
  is_nest = isinstance(model.input, (dict, list, tuple))
  return [*_get_inputs(model)] if is_nest else []


def _get_inputs(model: keras.Model) -> dict[str, Any]:
  """Returns {name: KerasTensor} of a model's inputs, {} if it knows none."""
  inputs = getattr(model, 'inputs', None) or []
  nest = getattr(model, 'input', None)  # Keras's Sequential may have none.
  if inputs and isinstance(nest, dict):
    return nest
  return {each.name: each for each in inputs}


def _pick(
  called: str, columns: Mapping[str, Any], inputs: Sequence[str]
) -> dict[str, Any]:
  if missing := [name for name in inputs if name not in columns]:
    raise ValueError(
      f'{called} has no column {missing[0]!r}, an input of the model: it has '
      f'{", ".join(map(str, columns))}'
    )
  return {name: columns[name] for name in inputs}


def _walk(called: str, nest: Any) -> Iterator[tuple[str, Any]]:
  """Yields (what an error calls it, values) of each column of a nest."""
  names, parts = array_folder.flatten(nest)
  for name, part in zip(names or [None], parts, strict=True):
    if isinstance(name, str):
      yield f'column {name} of {called}', part
    elif is_frame(part):
      for column, values in part.items():
        yield f'column {column} of {called}', values
    elif name is not None:
      yield f'array {name} of {called}', part
    elif np.ndim(part) == 2 and np.shape(part)[1] > 1:
      array = np.asarray(part)
      if array.dtype.kind == 'f' and not np.isfinite(array).all():
        for i in np.flatnonzero(~np.isfinite(array).all(0)).tolist():
          yield f'column {i} of {called}', array[:, i]
      else:
        yield called, part
    else:
      yield called, part


def _check_column(called: str, values: Any) -> None:
  """Raises ValueError if values are missing, infinite, or of another kind."""
  array, missing, infinite = _make_plain(values, called), 0, 0
  if array.dtype.kind == 'O':
    missing = sum(map(_is_missing, array.flat))
  elif array.dtype.kind == 'f':
    with np.errstate(over='ignore'):  # The tasks compute in float32.
      array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
      missing, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
  elif array.dtype.kind not in 'biucSU':
    raise ValueError(
      f'{called} is {array.dtype.name}: expected numbers, bool or text'
    )
  for number, what in (missing, 'missing'), (infinite, 'infinite'):
    if number:
      raise ValueError(
        f'{called}: {number:,} {"value is" if number == 1 else "values are"} '
        f'{what}: fill {"it" if number == 1 else "them"} first, as by fillna() '
        'of pandas or np.nan_to_num, or leave these examples out'
      )


def _is_missing(value: Any) -> bool:
  """Whether it is None, NaN, or pandas's NA or NaT."""
  if isinstance(value, (str, bytes)):
    return False
  if value is None or type(value).__name__ in ('NAType', 'NaTType'):
    return True
  return isinstance(value, (float, np.floating)) and math.isnan(value)


def _make_plain(values: Any, called: str = 'an array') -> np.ndarray:
  """Returns the array of a column; numbers that pandas keeps as objects too.

  Raises:
    ValueError: names what has values of several shapes.
  """
  try:
    array = np.asarray(values)
    if array.dtype == object and not any(
      isinstance(v, str) for v in array.flat
    ):
      plain = np.array(array.tolist())
      if plain.dtype.kind in 'biuf':
        return plain
    return array
  except ValueError as error:
    raise ValueError(
      f'{called} has values of several lengths or shapes: pad them to one, or '
      'make numbers of them'
    ) from error


def _make_array(values: Any) -> np.ndarray:
  """Returns an array of numbers or text, see array_folder.make_array."""
  if not is_frame(values):
    return array_folder.make_array(_make_plain(values))
  names, columns = zip(*values.items(), strict=True)
  columns = [*map(_make_plain, columns)]
  found = np.stack(columns, axis=1)
  mixed_columns.check(names, columns, found)
  return array_folder.make_array(found)


def _make_weights(called: str, weights: Nest) -> np.ndarray:
  [array] = array_folder.flatten(weights)[1][:1]
  if array.ndim == 2 and array.shape[1] == 1:  # A DataFrame of one column.
    array = array[:, 0]
  if array.ndim != 1 or array.dtype.kind not in 'biuf':
    raise ValueError(
      f'{called} is {array.dtype.name} of shape {[*array.shape]}: expected [n],'
      ' a number for each example'
    )
  weights = example_weights.convert(called, array)
  return example_weights.check_any(called, weights)
