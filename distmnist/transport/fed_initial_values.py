"""Initial values that are given, such as those of a net made elsewhere.

As constants they could make a GraphDef of 100 MB, too large to send to a ps: so
the initializers are zeros, and the values are fed when they run.
"""

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals


def give(name, load):
  """Gives the variable `name` of the default graph its initial value.

  Args:
    name: str, of the whole variable, however many shards it has.
    load: callable() -> array of the variable's shape and dtype.
  """
  graph_record.current().initial_values.append((name, load))


def make_feed():
  """Returns what to feed when the variables of the graph are initialised."""
  values = dict(graph_record.current().initial_values)
  feed = {}
  for variable in tf.global_variables() if values else ():
    cut = tf_internals.get_slice(variable)
    name = cut.full_name if cut else variable.op.name
    if name in values:
      value = values[name]()
      if cut:
        begin, size = cut.var_offset, cut.var_shape
        value = value[
          tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))
        ]
      feed[variable.initializer.inputs[1]] = value
  return feed
