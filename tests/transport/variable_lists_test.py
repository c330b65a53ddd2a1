"""variable_lists: assigned, added to and cleared as one."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.transport import variable_lists


def make_variables():
  return [
    tf.Variable(tf.zeros(shape), use_resource=True)
    for shape in ([2, 2], [1], [])
  ]


def test_all_are_assigned_added_to_and_cleared(tf_session):
  values = [*map(tf.constant, ([[1.0, 2], [3, 4]], [2.0], 3.0))]
  variables = make_variables()
  assign = variable_lists.assign_all(variables, values)
  add = variable_lists.add_all(variables, values)
  clear = variable_lists.clear_all(variables)
  tf_session.run(tf.global_variables_initializer())

  def run(op):
    tf_session.run(op)
    return [value.tolist() for value in tf_session.run(variables)]

  assert run(assign) == [[[1, 2], [3, 4]], [2], 3]
  assert run(add) == [[[2, 4], [6, 8]], [4], 6]
  assert run(clear) == [[[0, 0]] * 2, [0], 0]


def test_a_value_too_few_is_an_error(tf_session):
  for act in (variable_lists.assign_all, variable_lists.add_all):
    with pytest.raises(ValueError, match='zip'):
      act(make_variables(), [tf.zeros([2, 2])])
