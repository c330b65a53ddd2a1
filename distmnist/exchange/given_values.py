"""First values that are at hand, as those of a net that was made elsewhere.

In a graph they would be constants, and a GraphDef of 100 MB is sent to no ps:
so the initializers are zeros, and the values are fed when they run.
"""

import tensorflow.compat.v1 as tf

_VALUES = 'distmnist/given_values'


def give(name, load):
  """Has the variable of a name begin with a value, in the default graph.

  Args:
    name: str, of the whole variable, in however many shards it is.
    load: callable() -> array of its shape and type.
  """
  tf.add_to_collection(_VALUES, (name, load))


def make_feed():
  """Returns what to feed while the variables of the graph are initialised."""
  values = dict(tf.get_collection(_VALUES))
  feed = {}
  for variable in tf.global_variables() if values else ():
    cut = variable._get_save_slice_info()
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
