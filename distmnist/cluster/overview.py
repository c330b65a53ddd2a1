"""A cluster as --print_cluster shows it, and as its source names its tasks."""


def name_in_source(cluster, name):
  """Returns what the source calls a task, '' if it has the same name."""
  job, index = name.split()
  if job != 'worker' or not cluster.chief_alias:
    return ''
  if index == '0':
    return f'{cluster.chief_alias} 0'
  return f'worker {int(index) - 1}'


def format_tasks(cluster):
  """Returns all tasks with their addresses, and which is this one.

  Args:
    cluster: cluster.Cluster.

  Returns:
    str of several lines.
  """
  rows = {'read from': [cluster.source or 'nothing: one process trains alone']}
  places = cluster.addresses('ps') | {'worker 0': 'trains alone'}
  places |= cluster.addresses('worker', 'evaluator')
  places.setdefault(cluster.name, cluster.address)
  rows |= {name: [place] for name, place in places.items()}
  rows['worker 0'].append('the chief')
  for name, notes in rows.items():
    if name.startswith('evaluator'):
      notes.append('outside of the cluster')
    elif alias := name_in_source(cluster, name):
      notes.append(f'{alias} of {cluster.source}')
  rows['this task'] = [cluster.name]
  width = max(map(len, rows))
  return '\n'.join(
    f'{name:<{width}}  {", ".join(notes)}' for name, notes in rows.items()
  )
