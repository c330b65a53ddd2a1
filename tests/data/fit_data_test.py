"""fit_data: arrays, frames, data sets and weights; what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distmnist import runtime
from distmnist.data import fit_data

X, Y = np.arange(10.0), np.arange(10)
NAN = float('nan')
RAGGED = np.array([[1], [1, 2]], object)


@pytest.fixture(autouse=True)
def eager():
  with runtime.eagerly():
    yield


class Column:
  """As a Series of pandas."""

  def __init__(self, values):
    self._values = values

  def __array__(self, dtype=None, copy=None):
    is_text = any(not isinstance(v, (int, float)) for v in self._values)
    return np.array(self._values, object if is_text else None)


class Frame:
  """As a DataFrame of pandas."""

  def __init__(self, **columns):
    self.columns = list(columns)
    self._parts = {name: Column(values) for name, values in columns.items()}
    self.items = self._parts.items

  def __array__(self, dtype=None, copy=None):
    return np.stack([np.asarray(part) for part in self._parts.values()], 1)


class NAType:
  """As pandas.NA, which is neither equal to itself nor not."""

  def __bool__(self):
    raise TypeError


def make_splits(*args, **kwargs):
  return fit_data.make_splits(None, *args, **kwargs)[0]


def test_the_last_part_is_judged_on_in_place_of_trained():
  x = {'a': X, 'b': X + 1}
  splits = make_splits(x, Y, validation_split=0.25, sample_weight=Y / 10)
  (x_train, y_train, w_train), (x_judged, y_judged, w_judged) = splits.values()
  # Of 10, 7.5 are trained on: 7, as by Keras.
  assert x_train['b'].tolist() == [*range(1, 8)]
  assert x_judged['b'].tolist() == [8, 9, 10]
  assert y_train.tolist() == [*range(7)] and y_judged.tolist() == [7, 8, 9]
  assert (len(w_train), w_judged.dtype, w_judged[0]) == (
    7,
    'f',
    np.float32(0.7),
  )


def test_without_a_part_all_is_trained_on():
  splits = make_splits(X, Y)
  assert len(splits) == 1 and splits['train'][0] is X
  splits = make_splits(X, Y, (X[:2], Y[:2], [1, 2]))
  assert [len(found) for found in splits.values()] == [2, 3]
  assert splits['validation'][2].tolist() == [1, 2]


@pytest.mark.parametrize('part', [1, 1.5, -0.5, 0.99])
def test_a_part_that_leaves_one_side_empty_is_refused(part):
  with pytest.raises(ValueError, match=f'validation_split={part:g} of 10 exam'):
    make_splits(X, Y, None, part)


def test_the_weights_of_classes_are_those_of_keras_and_of_training_alone():
  splits = make_splits(X, Y % 2, None, 0.5, class_weight={1: 3, 7: 2})
  assert splits['train'][2].tolist() == [1, 3, 1, 3, 1]
  assert len(splits['validation']) == 2
  one_hot = np.eye(3)[[2, 0, 1]]
  assert fit_data.weigh_classes(one_hot, {2: 5}).tolist() == [5, 1, 1]
  assert fit_data.weigh_classes(Y[:3, None], {2: 5}).tolist() == [1, 1, 5]


@pytest.mark.parametrize(
  'settings, said',
  [
    ({'validation_data': (X, Y), 'validation_split': 0.5}, 'validation_split'),
    ({'validation_data': (X, Y, X, X)}, 'validation_data'),
    ({'validation_data': (X, Y[1:])}, 'validation_data has 10 and y of val'),
    ({'sample_weight': np.ones([10, 2])}, 'sample_weight'),
    ({'sample_weight': [1, 2]}, 'y has 10 and sample_weight has 2'),
    ({'sample_weight': [NAN] * 10}, 'sample_weight: 10 values'),
    ({'sample_weight': [[1], [1, 2]]}, '^sample_weight'),
    ({'sample_weight': -X}, '^sample_weight: 9 of 10'),
    ({'sample_weight': 0 * X}, '^sample_weight'),
    ({'validation_data': (X, Y, 0 * X)}, 'validation_data'),
    ({'sample_weight': X >= 5, 'validation_split': 0.5}, 'train part'),
    ({'sample_weight': X < 5, 'validation_split': 0.5}, 'validation part'),
    ({'class_weight': dict.fromkeys(range(10), 0)}, '^class_weight'),
    ({'class_weight': {'yes': 2}}, 'class_weight={.yes.: 2}'),
    ({'class_weight': {-1: 2, 10: 2}}, 'class_weight={.*labels are 0 to 9'),
    ({'class_weight': {1: None}}, r'^class_weight\[1\]'),
    ({'class_weight': {1: 1e39}}, r'^class_weight\[1\]'),
    ({'class_weight': {1: 2}, 'sample_weight': X}, 'class_weight and sample_'),
  ],
)
def test_arguments_that_do_not_fit_are_refused(settings, said):
  with pytest.raises(ValueError, match=said) as why:
    make_splits(X, Y, **settings)
  assert '\n' not in str(why.value)


@pytest.mark.parametrize(
  'x, other, path',
  [
    (np.ones([10, 2]), np.ones([4, 3]), 'x'),
    (np.ones([10, 2]), np.ones([4]), 'x'),
    (X, Y[:4], 'x'),
    (X.astype(str), X[:4].astype('S'), None),
    ({'a': X, 'b': X}, {'a': X[:4], 'b': X[:4] > 1}, 'b of x'),
    (X, X[:4].astype(np.float32), None),
  ],
)
@pytest.mark.parametrize('name', ['validation_data', 'test_data'])
def test_other_data_are_of_the_type_and_shape_of_the_training(
  name, x, other, path
):
  if path is None:
    assert len(make_splits(x, Y, **{name: (other, Y[:4])})) == 2
    return
  with pytest.raises(ValueError, match=f'^{name} has .* as {path} where'):
    make_splits(x, Y, **{name: (other, Y[:4])})


def test_labels_of_other_data_are_as_those_of_the_training():
  with pytest.raises(ValueError, match=r'^test_data has \[1\] .* as y where y'):
    make_splits(X, Y, test_data=(X[:4], Y[:4, None]))


@pytest.mark.parametrize(
  'wanted, found, is_taken',
  [
    ([784], [28, 28], False),
    ([28, 28, 1], [28, 28], True),
    ([28, 28, 1], [28], False),
    ([28, 28], [28, 28, 1], True),
    ([None, 3], [3], False),
    ([28, 28], [28, 28, 3], False),
    ([], [1], True),
    ([1], [], True),
  ],
)
def test_only_a_last_axis_of_one_is_added_or_dropped(wanted, found, is_taken):
  model = keras.Sequential([keras.Input(wanted), keras.layers.Flatten()])
  x = np.ones([4, *found], np.float32)
  if is_taken:
    model(x)
    assert fit_data.make_splits(model, x, Y[:4])
    return
  with pytest.raises(ValueError, match='^the model takes .* as x, which is'):
    fit_data.make_splits(model, x, Y[:4])
  with pytest.raises(ValueError, match='shape'):  # Nor does Keras.
    model(x)


def test_what_a_model_takes_is_known_before_a_training():
  model = keras.Sequential([keras.Input([11]), keras.layers.Dense(1)])
  said = r'^the model takes \[11\] as x, which is \[10\]'
  with pytest.raises(ValueError, match=said):
    fit_data.make_splits(model, np.ones([4, 10]), Y[:4])
  assert fit_data.make_splits(model, np.ones([4, 11]), Y[:4])
  model = keras.Sequential([keras.Input([None, 3]), keras.layers.Dense(1)])
  assert fit_data.make_splits(model, np.ones([4, 7, 3]), Y[:4])
  model = make_model('a', 'b')
  x = {'b': np.ones([4, 2]), 'a': Y[:4]}  # Keras makes [4, 1] of a.
  with pytest.raises(
    ValueError, match=r'takes \[1\] as b of x, which is \[2\]'
  ):
    fit_data.make_splits(model, x, Y[:4])
  assert fit_data.make_splits(model, {'b': X, 'a': Y}, Y)
  # Only its code says what it takes.
  model = keras.Sequential([keras.layers.Dense(1)])
  assert fit_data.make_splits(model, np.ones([4, 10]), Y[:4])


@pytest.mark.parametrize(
  'x, y, said',
  [
    (X, None, 'no y'),
    (X, Y[:5], 'x has 10 and y has 5 examples'),
    ([[1, 2]] * 10, Y, 'x has 2 and y has 10 examples: .+ make one array'),
    ([1, 2, 3], Y, '1 is a single value'),
    ((a for a in X), Y, 'x is a generator'),
    (X, {'a': Y, 'b': Y}, 'y has 2 arrays'),
    (X[:0], Y[:0], 'x has no example'),
    (X, [], '^y has no array'),
    ({}, Y, '^x has no array'),
    (X[:2], RAGGED, '^y has values of several'),
    ({'a': X[:2], 'b': RAGGED}, Y[:2], '^column b of x has values of several'),
    (Frame(a=[[1], [1, 2]]), Y[:2], '^column a of x has values of several'),
    (np.array([1, NAN, NAN]), Y[:3], '^x: 2 values'),
    (np.array([[1, 2], [3, NAN]]), Y[:2], '^column 1 of x: 1 value'),
    ({'age': [1, 2], 'b': [1, np.inf]}, Y[:2], '^column b of x: 1 value'),
    (np.array([1e39, 0]), Y[:2], '^x: 1 value is infinite'),
    (X[:2], np.array([NAN, 0]), '^y: 1 value'),
    (Frame(a=[1, 2], age=[1.5, NAN]), Y[:2], '^column age of x: 1 value'),
    (Frame(a=['x', None]), Y[:2], '^column a of x: 1 value'),
    ({'a': Column([1, NAType()])}, Y[:2], '^column a of x: 1 value'),
    (X[:2].astype('M8[s]'), Y[:2], r'^x is datetime64\[s\]'),
  ],
)
def test_examples_without_a_value_are_named(x, y, said):
  with pytest.raises(ValueError, match=said) as why:
    make_splits(x, y)
  assert '\n' not in str(why.value)


def test_a_model_of_two_outputs_is_refused():
  given = keras.Input([1])
  outputs = [keras.layers.Dense(1)(given) for _ in range(2)]
  model = keras.Model(given, outputs)
  with pytest.raises(ValueError, match='has 2 outputs, .* write a file with'):
    fit_data.make_splits(model, X, Y)


def make_model(*names):
  if not names:
    return keras.Sequential([keras.layers.Dense(1)])
  inputs = {name: keras.Input([1], name=name) for name in names}
  both = keras.layers.Concatenate()(list(inputs.values()))
  return keras.Model(inputs, keras.layers.Dense(1)(both))


def test_a_frame_is_one_array_or_a_column_for_each_input():
  numbers = Frame(a=[1, 2], b=[0.5, 1.5])
  x, _ = fit_data.take(make_model(), 'x', numbers, Y[:2])
  assert x.tolist() == [[1, 0.5], [2, 1.5]]
  x, _ = fit_data.take(make_model('b', 'a'), 'x', numbers, Column([0, 1]))
  assert {n: v.tolist() for n, v in x.items()} == {'b': [0.5, 1.5], 'a': [1, 2]}
  # A model whose code says what it takes.
  mixed = Frame(a=[1, 2], city=['x', 'y'])
  x, _ = fit_data.take(None, 'x', mixed, Y[:2])
  assert x['city'].tolist() == ['x', 'y']


def test_a_frame_that_is_not_what_the_model_takes_is_refused():
  mixed = Frame(a=[1, 2], city=['x', 'y'])
  with pytest.raises(ValueError, match='^city of x: not numbers, and the'):
    fit_data.take(make_model(), 'x', mixed, Y[:2])
  with pytest.raises(ValueError, match="^x has no column 'b', an input of the"):
    fit_data.take(make_model('a', 'b'), 'x', mixed, Y[:2])


def test_a_dict_has_what_the_inputs_of_the_model_are_called():
  model = make_model('b', 'c')
  # Keras itself would take a and b as b and c.
  given = {'a': X, 'c': X + 2, 'b': X + 1}
  x, _ = fit_data.take(model, 'x', given, Y)
  assert {name: array[0] for name, array in x.items()} == {'b': 1, 'c': 2}
  with pytest.raises(ValueError, match="^x has no column 'c', an input of the"):
    fit_data.take(model, 'x', {'a': X, 'b': X}, Y)
  x, _ = fit_data.take(None, 'x', given, Y)
  assert [*x] == ['a', 'c', 'b']
  inputs = [keras.Input([1], name=name) for name in ('b', 'c')]
  listed = keras.Model(inputs, keras.layers.Add()(inputs))
  x, _ = fit_data.take(listed, 'x', given, Y)
  assert {name: array[0] for name, array in x.items()} == {'b': 1, 'c': 2}
  with pytest.raises(ValueError, match='^the model takes 2 arrays as x, .* 3$'):
    fit_data.make_splits(listed, [X, X, X], Y)


def test_numbers_that_pandas_keeps_as_objects_are_numbers():
  column = np.array([1, 2, 3], object)
  x, _ = fit_data.take(None, 'x', column, Y[:3])
  assert x.dtype.kind == 'i'
  frame = Frame(a=[1, 2], b=[0.5, 1.5])
  frame._parts['a'] = np.array([1, 2], object)
  x, _ = fit_data.take(make_model(), 'x', frame, Y[:2])
  assert x.tolist() == [[1, 0.5], [2, 1.5]]
  frame._parts['a'] = np.array([1, (1 << 24) + 1], object)
  with pytest.raises(ValueError, match='^a of the columns a, b has whole numb'):
    fit_data.take(make_model(), 'x', frame, Y[:2])


def make_dataset(*parts):
  return tf.data.Dataset.from_tensor_slices(parts)


@pytest.mark.slow
def test_a_data_set_is_read_in_its_order():
  given = make_dataset({'a': X, 't': X.astype(str)}, Y)
  x, y = fit_data.take(None, 'x', given)
  assert x['a'].tolist() == X.tolist() and x['t'][3] == '3.0'
  assert y.tolist() == Y.tolist()
  x, y, w = fit_data.take(None, 'x', make_dataset(X, Y, Y).batch(4))
  assert (x.tolist(), y.tolist(), w.dtype) == (X.tolist(), Y.tolist(), 'f')
  assert fit_data.make_splits(None, given)[1] is None
  assert fit_data.make_splits(None, make_dataset(X, Y).batch(4))[1] == 4
  splits = make_splits(
    make_dataset(X, Y),
    validation_data=make_dataset(X, Y).batch(3),
    test_data=(X[:2], Y[:2]),
  )
  sizes = {name: len(x) for name, (x, _) in splits.items()}
  assert sizes == {'train': 10, 'validation': 10, 'test': 2}


@pytest.mark.slow
@pytest.mark.parametrize(
  'change, said',
  [
    (lambda d: d.repeat(), 'without an end: leave repeat'),
    (lambda d: d.filter(lambda x, y: y > 2), 'size is not known: say it by'),
    (lambda d: d.map(lambda x, y: x), 'of other elements than'),
    (lambda d: d.take(0), 'has no example'),
    (lambda d: d.ragged_batch(2), 'elements do not make one array'),
    (lambda d: d.map(lambda x, y: (x, y[None])), r'batch\(\.\.\.\) it'),
    (lambda d: d.map(lambda x, y: ([x, x], y[None])), r'batch\(\.\.\.\) it'),
    (
      lambda d: d.map(lambda x, y: ([x, x], tf.one_hot(y, 3))),
      r'batch\(\.\.\.\) it',
    ),
  ],
)
def test_a_data_set_that_has_no_numbered_examples_is_refused(change, said):
  given = make_dataset(X, Y)
  if 'do not make' in said:
    given = tf.data.Dataset.range(4).map(lambda i: (tf.range(i), i))
  with pytest.raises(ValueError, match=said):
    make_splits(change(given))


@pytest.mark.parametrize(
  'loss, units, y, said',
  [
    ('binary_crossentropy', 1, [0, 1, 2], 'y has 2 as labels of 1 examples'),
    ('bce', 1, ['no', 'yes', 'no'], "^y is text, such as 'no', and the loss"),
    (
      keras.losses.SparseCategoricalCrossentropy(),
      *(3, [3, -1, 1], 'has -1, 3 as .* gives 3 classes: .* from 0 to 2'),
    ),
    (
      'categorical_crossentropy',
      *(3, [0, 1, 2], r'\[3\], and the .* 3 classes: expected \[n, 3\], one-'),
    ),
    (
      'sparse_categorical_crossentropy',
      *(3, np.eye(3), r'\[3, 3\], one-hot, .*categorical_.* y\.argmax\(-1\)'),
    ),
    ('sparse_categorical_crossentropy', 3, [[0], [2], [1]], None),
    (
      keras.losses.SparseCategoricalCrossentropy(ignore_class=-1),
      *(3, [2, -1, 1], None),
    ),
    (
      keras.losses.MeanSquaredError(reduction='sum'),
      *(1, [0, 1, 2], "reduction='sum', .* expected a mean"),
    ),
    (None, 1, [0, 1, 2], 'compiled without a loss: expected'),
    ('mse', 1, [5, -1, 0.5], None),
    ('bce', 1, [True, False, True], None),
  ],
)
def test_labels_are_of_the_classes_that_the_model_has(loss, units, y, said):
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(units)])
  splits = {'train': (X[:3], np.array(y))}
  if said is None:
    fit_data.check_labels(model, loss, splits)
  else:
    with pytest.raises(ValueError, match=said):
      fit_data.check_labels(model, loss, splits)
