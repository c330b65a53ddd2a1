"""split: examples as nests of arrays, and what is not an array."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import split


def test_a_split_is_cut_and_packed_as_its_nest_is():
  x = {'a': np.arange(5), 'b': (np.eye(5, 2),)}
  found = split.make(x, np.arange(5) % 2)
  assert found.num_examples == 5
  part = found.slice(1, 3)
  assert part.num_examples == 2
  assert part.x['a'].tolist() == [1, 2]
  assert part.x['b'][0].tolist() == [[0, 1], [0, 0]]
  assert part.y.tolist() == [1, 0]
  shapes = found.pack([array.shape for array in found.arrays()])
  assert (shapes.x['a'], shapes.y) == ((5,), (5,))


def test_a_leaf_has_the_name_of_its_path():
  found = split.Split({'b': 1, 'a': (2, 3)}, 4)
  assert [*split.walk(found)] == [
    *(('x/a/0', 2), ('x/a/1', 3)),
    *(('x/b', 1), ('y', 4)),
  ]
  assert [leaf for _, leaf in split.walk(found)] == found.arrays()
  assert [*split.walk(5)] == [('', 5)]


def test_numbers_are_of_a_graphs_type_and_text_is_bytes():
  found = split.make((np.ones(2), [[1, 2], [3, 4]]), ['ja', 'né'])
  assert [a.dtype for a in found.arrays()] == [np.float32, np.int64, object]
  assert found.y.tolist() == [b'ja', 'né'.encode()]
  mixed = np.array([['ja', b'no'], ['né', '']], object)  # As pandas has text.
  assert split.make(mixed, np.ones(2)).x.tolist() == [
    [b'ja', b'no'],
    ['né'.encode(), b''],
  ]


@pytest.mark.parametrize('dtype', ['>i4', '>u2', '>f4', '>f8', '>c8'])
def test_numbers_in_another_byte_order_reach_a_graph(dtype):
  array = split.make(np.array([1, 2], dtype), np.ones(2)).x
  with tf.Graph().as_default(), tf.Session() as session:
    # As input_pipeline keeps the training examples.
    tensor = tf.py_func(lambda: array, [], tf.as_dtype(array.dtype))
    assert session.run(tensor).tolist() == [1, 2]
  assert array.dtype != np.float64


@pytest.mark.parametrize(
  'x, y, message',
  [
    ((), (), 'it has no arrays'),
    (np.zeros(3), np.zeros(2), 'its arrays have 2, 3 examples: expected the s'),
    (5.0, np.zeros(1), '5.0 is a single value: expected an array of one'),
    (
      np.array([[1], [1, 2]], object),
      np.zeros(2),
      'an array has rows of different lengths',
    ),
    (
      np.array([[1.0, 'red']], object),
      np.zeros(1),
      'as text beside numbers: .* the columns of a table as a dict',
    ),
    (np.array([0, 1, np.nan]), np.zeros(3), 'example 2 has a number that is n'),
    (np.zeros(2), np.zeros(2, 'M8[D]'), r'datetime64\[D\]: expected numbers'),
    (np.full(2, 1e300), np.zeros(2), 'example 0 has a number that is not'),
    (np.array([0, np.nan + 1j]), np.zeros(2), 'example 1 has a number that'),
    (
      np.array([np.nan, 0], tf.bfloat16.as_numpy_dtype),
      np.zeros(2),
      'example 0 has a number that is not finite',
    ),
    (np.zeros(2), np.array([np.inf, 0]), 'example 0 has a number that is not'),
  ],
)
def test_what_no_graph_can_take_is_named(x, y, message):
  with pytest.raises(ValueError, match=message):
    split.make(x, y)


@pytest.mark.parametrize(
  'value',
  [
    tf.SparseTensorValue(np.zeros([2, 2], int), np.ones(2), np.array([2, 1])),
    tf.ragged.constant_value([[1], [2, 3]]),
  ],
)
def test_what_is_not_dense_is_named(value):
  with pytest.raises(ValueError, match='^a .*TensorValue: expected dense arr'):
    split.make({'x': value}, np.zeros(2))


def test_shapes_begin_with_the_number_of_examples():
  assert (
    split.describe_specs(
      {
        'x': tf.TensorSpec([None, 2], tf.float32),
        'words': tf.TensorSpec([None, None], tf.string),
        'one': tf.TensorSpec([1], tf.int32),
        'any': tf.TensorSpec(None, tf.bool),
      }
    )
    == 'x float32 [n, 2], words string [n, ?], one int32 [1], any bool of any '
    'shape'
  )


def test_weights_are_one_number_for_each_example():
  found = split.make(np.ones(3), np.ones(3), [1, 2, 3])
  assert (found.w.dtype, found.weights.tolist()) == (np.float32, [1, 2, 3])
  assert [len(array) for array in found.slice(1, 3).arrays()] == [2, 2, 2]
  assert split.make(np.ones(3), np.ones(3)).weights is None
  for wrong in (np.ones([3, 1]), ['a', 'b', 'c']):
    with pytest.raises(ValueError, match=r'expected \[n\], a number for each'):
      split.make(np.ones(3), np.ones(3), wrong)
  for wrong in ([1, -1, 0], [1, np.nan, 0], [1, np.inf, 0], [1, 1e39, 0]):
    with pytest.raises(ValueError, match='the weights: 1 of 3'):
      split.make(np.ones(3), np.ones(3), wrong)
  with pytest.raises(ValueError, match='arrays have 2, 3 examples'):
    split.make(np.ones(3), np.ones(3), np.ones(2))
