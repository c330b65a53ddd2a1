"""The names, shapes and dtypes that variables have in a checkpoint."""

from distmnist import tf_internals
from distmnist.logdir import checkpoint_files


def find_all(variables):
  """Returns {name: (shape, a list; tf.DType)}, each variable whole.

  Args:
    variables: list of tf.Variable; of a partitioned one, its shards. Or a dict
      of name in the checkpoint -> tf.Variable, a whole one.
  """
  if isinstance(variables, dict):
    return {
      name: (v.shape.as_list(), v.dtype.base_dtype)
      for name, v in variables.items()
    }
  forms = {}
  for variable in variables:
    shard = tf_internals.get_slice(variable)  # The only place that knows it.
    name, shape = variable.op.name, variable.shape.as_list()
    if shard is not None:
      name, shape = shard.full_name, list(shard.full_shape)
    forms[name] = shape, variable.dtype.base_dtype
  return forms


def read(path):
  """Returns {name: (shape, tf.DType)} of the variables in a checkpoint.

  Raises:
    cli.RunError: unreadable; see checkpoint_files.read.
  """

  def find(reader):
    dtypes = reader.get_variable_to_dtype_map()
    return {
      name: (shape, dtypes[name])
      for name, shape in reader.get_variable_to_shape_map().items()
    }

  return checkpoint_files.read(path, find)
