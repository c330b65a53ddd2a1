"""layouts: what an example is packed into, and what is refused."""

import json

import numpy as np
import pytest

from distmnist.spark import layouts

SHAPE = (2, 3, 1)
IMAGES = layouts.make_of_images(SHAPE, 10)


class Vector:
  """As pyspark.ml has them."""

  def toArray(self):  # noqa: N802
    return np.array([1.0, 2.0])


@pytest.mark.parametrize(
  'image',
  [
    bytes(range(6)),
    bytearray(range(6)),
    np.arange(6, dtype=np.uint8).reshape(SHAPE),
    np.arange(6.0),
    [[0, 1, 2], [3, 4, 5]],
  ],
)
def test_an_image_may_be_of_many_kinds(image):
  assert layouts.pack((image, 3), IMAGES) == [bytes(range(6)), b'\3\0\0\0']


@pytest.mark.parametrize(
  ('image', 'label', 'words'),
  [
    (b'12345', 0, r'images has the shape \[5\], expected \[2, 3, 1\]'),
    ([0, 1, 2, 3, 4, 256], 0, 'images has values that are no uint8'),
    (['a'] * 6, 0, 'expected numbers'),
    (np.full(6, np.nan), 0, 'images has values that are no uint8'),
    ([], 0, r'images has the shape \[0\]'),
    (b'123456', 10, 'labels is 10, expected 0 to 9'),
    (b'123456', -1, 'labels is -1, expected 0 to 9'),
  ],
)
def test_what_is_no_image_or_label_is_refused(image, label, words):
  with pytest.raises(ValueError, match=words):
    layouts.pack((image, label), IMAGES)


def test_the_first_example_says_what_all_are():
  layout = layouts.make(({'a': [1, 2], 'b': 'text'}, (0.5, True)))
  assert json.loads(json.dumps(layout)) == layout
  assert layout['nests'] == {'x': ['a', 'b'], 'y': [0, 1]}
  assert [
    (leaf['name'], leaf['dtype'], leaf['shape']) for leaf in layout['leaves']
  ] == [
    ('x_0', '<i8', [2]),
    ('x_1', 'text', []),
    ('y_0', '<f4', []),
    ('y_1', '|b1', []),
  ]
  # Another order of a dict's keys is the same example.
  a, b, *_ = layouts.pack(({'b': b'z', 'a': (3, 4)}, (1, False)), layout)
  assert np.frombuffer(a, np.int64).tolist() == [3, 4] and b == b'z'


def test_a_vector_of_spark_is_an_array():
  layout = layouts.make((Vector(), 1))
  assert layout['leaves'][0]['shape'] == [2]
  packed, _ = layouts.pack((Vector(), 2), layout)
  assert np.frombuffer(packed, np.float32).tolist() == [1, 2]


@pytest.mark.parametrize(
  'first, example, words',
  [
    ((1.0, 2), 3, r'an example is 3: expected \(x, y\)'),
    ((1.0, 2), ('a', 2), "x_0 is 'a': expected numbers"),
    (([1.0, 2], 2), ([1.0], 2), r'x_0 has the shape \[1\], expected \[2\]'),
    ((1, 2), (1.5, 2), 'x_0 has values that are no int64'),
    (('a', 2), (1, 2), 'x_0 is 1: expected a text'),
    (({'a': 1}, 2), ({'b': 1}, 2), r"x has \['b'\], expected \['a'\]"),
    (((1, 2), 2), ((1,), 2), r'x has \[0\], expected \[0, 1\]'),
  ],
)
def test_what_is_unlike_the_first_is_refused(first, example, words):
  with pytest.raises(ValueError, match=words):
    layouts.pack(example, layouts.make(first))


@pytest.mark.parametrize('value', [None, {}, object(), []])
def test_what_is_neither_number_nor_text_is_refused(value):
  with pytest.raises(ValueError, match='expected'):
    layouts.pack((value, 1), layouts.make((value, 1)))
    raise ValueError('expected: an empty dict has no leaf')
