"""TF_CONFIG as tests write it."""

import json

PS, WORKERS = ['p0:1', 'p1:1'], ['w0:1', 'w1:1']


def config(cluster, job=None, index=None, **more):
  """Returns a TF_CONFIG (str)."""
  task = {'type': job, 'index': index}
  task = {name: value for name, value in task.items() if value is not None}
  return json.dumps({'cluster': cluster, 'task': task, **more})
