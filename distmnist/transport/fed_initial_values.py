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


def give_first(name, load):
  """Gives a variable its value in a run that begins, in place of any other.

  Args:
    name: str, as in `give`.
    load: callable() -> array of the variable's shape and dtype, or None: then
      it has what it has otherwise.
  """
  graph_record.current().first_values.append((name, load))


def make_feed(is_new=True):
  """Returns what to feed when the variables of the graph are initialised.

  Args:
    is_new: bool, whether a run begins; else the values are replaced at once.
  """
  record = graph_record.current()
  values = dict(record.initial_values)
  first = dict(record.first_values) if is_new else {}
  feed = {}
  for variable in tf.global_variables() if values or first else ():
    cut = tf_internals.get_slice(variable)
    name = cut.full_name if cut else variable.op.name
    value = first[name]() if name in first else None
    if value is None and name in values:
      value = values[name]()
    if value is None:
      continue
    if cut:
      begin, size = cut.var_offset, cut.var_shape
      value = value[
        tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))
      ]
    feed[variable.initializer.inputs[1]] = value
  return feed
