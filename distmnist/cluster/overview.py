"""A cluster as --print_cluster shows it."""


def format_tasks(cluster):
  """Returns all tasks with their addresses, and which is this one.

  Args:
    cluster: cluster.Cluster.

  Returns:
    str of several lines.
  """
  rows = {'read from': [cluster.source or 'nothing: one process trains alone']}
  places = cluster.addresses('ps') | {'worker 0': 'trains alone'}
  places |= cluster.addresses('worker') | cluster.addresses('evaluator')
  places.setdefault(cluster.name, cluster.address)
  rows |= {name: [place] for name, place in places.items()}
  rows['worker 0'].append('the chief')
  for name, notes in rows.items():
    if name.startswith('evaluator'):
      notes.append('outside of the cluster')
    elif name.startswith('worker') and cluster.name_in_source(name):
      notes.append(f'{cluster.name_in_source(name)} of {cluster.source}')
  rows['this task'] = [cluster.name]
  width = max(map(len, rows))
  return '\n'.join(
    f'{name:<{width}}  {", ".join(notes)}' for name, notes in rows.items()
  )
