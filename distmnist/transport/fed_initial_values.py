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


def give_first(load):
  """Gives variables their values in a run that begins, in place of any others.

  Args:
    load: callable() -> {name: array of the variable's shape and dtype}, names
      as in `give`.
  """
  graph_record.current().first_values.append(load)


def make_feed(is_new=True):
  """Returns what to feed when the variables of the graph are initialised.

  Args:
    is_new: bool, whether a run begins; else the values are replaced at once.
  """
  record = graph_record.current()
  values = dict(record.initial_values)
  first, feed = {}, {}
  for load in record.first_values if is_new else ():
    first |= load()
  for variable in tf.global_variables() if values or first else ():
    cut = tf_internals.get_slice(variable)
    name = cut.full_name if cut else variable.op.name
    if name not in first and name not in values:
      continue
    value = first[name] if name in first else values[name]()
    if cut:
      begin, size = cut.var_offset, cut.var_shape
      value = value[
        tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))
      ]
    feed[variable.initializer.inputs[1]] = value
  return feed
