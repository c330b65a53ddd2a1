"""Variables that a checkpoint may have under another name than their own."""

from distmnist import graph_record
from distmnist.logdir import checkpoint_files, checkpoints


def add(variable, find):
  """Has checkpoints searched for a variable that they lack by its name.

  Args:
    variable: tf.Variable, whole.
    find: callable(names in a checkpoint) -> the name there, or None.
  """
  graph_record.current().other_names.append((variable.op.name, find))


def choose(variables):
  """Returns those of `variables`, a list, for which `add` was called."""
  finders = _find_all()
  return [v for v in variables if v.op.name in finders]


def choose_lost(path, variables):
  """Returns those of `choose` that a checkpoint has under no name at all."""
  saved = checkpoints.read_shapes(path)
  return [v for v in choose(variables) if not _find_name(v, saved)]


def load(session, path, variables):
  """Gives `variables`, a list, what a checkpoint has of them.

  Args:
    session: tf.Session.
    path: str, a whole checkpoint on this machine.
    variables: list of tf.Variable, each whole.
  """

  def read(reader):
    saved = reader.get_variable_to_shape_map()
    names = {_find_name(variable, saved) for variable in variables} - {None}
    return {name: reader.get_tensor(name) for name in names}

  values = checkpoint_files.read(path, read)
  for variable in variables:
    if name := _find_name(variable, values):
      initializer = variable.initializer
      session.run(initializer, {initializer.inputs[1]: values[name]})


def _find_name(variable, saved):
  name = variable.op.name
  find = _find_all().get(name, lambda saved: None)
  return name if name in saved else find(saved)


def _find_all():
  return dict(graph_record.current().other_names)
