"""Values for the variables of a graph."""

import tensorflow.compat.v1 as tf


def run_with(session, tensor, **values):
  """Assigns `values` to the variables by their last name; runs `tensor`."""
  session.run(tf.global_variables_initializer())
  for variable in tf.global_variables():
    value = values[variable.op.name.rpartition('/')[2]]
    session.run(variable.assign(value))
  return session.run(tensor)
