"""What the devices did in a step, from TensorFlow's StepStats to a timeline."""

import re

# What these do is to wait for others, under a lock or for a round.
_WAITS = re.compile(r'Dequeue|TakeGradient|MutexLock|Barrier|Collective|_Recv')
_DEVICE = re.compile(r'/job:(\w+)/replica:\d+/task:(\d+)')
_MESSAGE = re.compile(r'\[([\d.]+)([KMG]?)B\] .*?edge_\d+_(\S+) from (\S+) to')
_SIZES = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30}
# A message of less has no weight: its time is that of what it waits for.
_LEAST_BYTES = 1024


def find_events(step_stats, own_task, offsets):
  """Returns the events of a step, a list as timeline.lay_out takes it.

  Args:
    step_stats: tf.StepStats.
    own_task: str, the task that ran the step, such as 'worker 0'.
    offsets: {task: seconds by which its clock is ahead of the one that all
      are told by}, floats; a task that is not there has 0.
  """
  found = []
  for device in step_stats.dev_stats:
    # A GPU has each op once where it was started, and once a stream.
    if '/stream:' in device.device:
      continue
    task = find_task(device.device) or own_task
    ahead = 1e6 * offsets.get(task, 0.0)
    for node in device.node_stats:
      micros = max(node.op_end_rel_micros, node.all_end_rel_micros)
      if micros > 0:
        event = _make_event(node, task)
        start = node.all_start_micros - ahead
        found.append({**event, 'task': task, 'start': start, 'micros': micros})
  return found


def find_task(device):
  """Returns the task of a device, such as 'ps 1', or None."""
  found = _DEVICE.search(device)
  if not found or found[1] == 'localhost':
    return None
  return f'{found[1]} {found[2]}'


def _make_event(node, task):
  """Returns kind, name and args of what a node did on `task`."""
  label = node.timeline_label
  if found := _MESSAGE.search(label):
    num_bytes = round(float(found[1]) * _SIZES[found[2]])
    source = find_task(found[4]) or found[4]
    kind = 'push' if task.startswith('ps') else 'pull'
    if num_bytes < _LEAST_BYTES:
      kind = 'wait'
    args = {'tensor': found[3], 'bytes': num_bytes, 'from': source}
    return {'kind': kind, 'name': f'{kind}: {source}', 'args': args}
  op = label.partition(' = ')[2].partition('(')[0] or node.node_name
  kind = 'wait' if _WAITS.search(op) else 'compute'
  return {'kind': kind, 'name': op, 'args': {'op': node.node_name}}
