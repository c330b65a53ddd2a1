"""The warning at the start of a run whose ports others may reach."""


def describe(tasks):
  """Returns a line (str) on who can reach `tasks`, a str such as 'the tasks'.

  TensorFlow's server listens on all addresses, asks for no password and
  runs any graph, which may read and write files.
  """
  return (
    f'anyone who reaches the ports of {tasks} can run programs there as you:'
    ' see docs/security.md for how to shut them'
  )
