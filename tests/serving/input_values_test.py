"""input_values: no value is changed to fit its input."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.serving import input_values


@pytest.mark.parametrize(
  'text, found', [('1e308', 1e308), ('-Infinity', -np.inf), ('inf', np.inf)]
)
def test_a_number_is_what_it_says(text, found):
  assert input_values.parse_float(text) == found


@pytest.mark.parametrize('text', ['1e309', '-1e400', '9' * 400])
def test_a_number_beyond_pythons_is_not_infinite(text):
  with pytest.raises(ValueError, match=f'^{text} is too large$'):
    input_values.parse_float(text)


def test_a_value_keeps_its_size_or_is_refused():
  spec = tf.TensorSpec([None], tf.int8)
  found = input_values.convert('x', np.array([1.0, -128.0]), spec)
  assert found.dtype == np.int8 and found.tolist() == [1, -128]
  for value in (1.5, 128.0):
    with pytest.raises(ValueError, match='^x has values that are no int8$'):
      input_values.convert('x', np.array([value]), spec)
