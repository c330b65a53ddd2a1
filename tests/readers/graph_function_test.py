"""graph_function: ops that are called."""

from concurrent import futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.readers import graph_function


def test_it_gives_the_nest_that_its_function_builds():
  function = graph_function.GraphFunction(
    lambda x: {'a': x + 1, 'b': (x * 2,)}, tf.int64, None
  )
  with futures.ThreadPoolExecutor(4) as pool:
    for i, found in enumerate(pool.map(function, [[n] for n in range(20)])):
      assert found['a'].tolist() == [i + 1] and found['b'][0].tolist() == [
        2 * i
      ]


def test_an_op_that_fails_raises():
  function = graph_function.GraphFunction(
    lambda x: tf.strings.to_number(x), tf.string, None
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match='correctly conv'):
    function(['x'])


def test_a_lookup_table_is_filled():
  def number(words):
    given = tf.lookup.KeyValueTensorInitializer(['a', 'b'], [1, 2])
    return tf.lookup.StaticHashTable(given, 0).lookup(words)

  function = graph_function.GraphFunction(number, tf.string, None)
  assert function(['b', 'c', 'a']).tolist() == [2, 0, 1]
