"""What the devices did in a step, from TensorFlow's StepStats to a timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Ops that only wait for other tasks, under a lock or for a round.
_WAITS = re.compile(r'Dequeue|TakeGradient|MutexLock|Barrier|_Recv')
_DEVICE = re.compile(r'/job:(\w+)/replica:\d+/task:(\d+)')
_MESSAGE = re.compile(r'\[([\d.]+)([KMG]?)B\] .*?edge_\d+_(\S+) from (\S+) to')
_SIZES = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30}
# The time of a smaller message is spent waiting for what it depends on.
_LEAST_BYTES = 1024


def find_events(
  step_stats: Any, own_task: str, offsets: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Returns the events of a step, a list as timeline.lay_out takes it.

  Args:
    step_stats: the StepStats of a run's metadata.
    own_task: the task that ran the step, such as 'worker 0'.
    offsets: {task: seconds by which its clock is ahead of the clock used for
      all events}, floats; a task without an entry has 0.
  """
  found = []
  for device in step_stats.dev_stats:
    # A GPU lists each op where it was launched, and again for each stream.
    if '/stream:' in device.device:
      continue
    task = find_task(device.device) or own_task
    unit = device.device.rpartition('/device:')[2]
    ahead = 1e6 * offsets.get(task, 0.0)
    for node in device.node_stats:
      micros = max(node.op_end_rel_micros, node.all_end_rel_micros)
      if micros > 0:
        event = _make_event(node, task, unit)
        start = node.all_start_micros - ahead
        found.append({**event, 'task': task, 'start': start, 'micros': micros})
  return found


def find_task(device: str) -> str | None:
  """Returns the task of a device, such as 'ps 1', or None."""
  found = _DEVICE.search(device)
  if not found or found[1] == 'localhost':
    return None
  return f'{found[1]} {found[2]}'


def _make_event(node: Any, task: str, unit: str) -> dict[str, Any]:
  """Returns the kind, name and args of what a node did on `task`.

  Args:
    node: a NodeExecStats.
    task: such as 'ps 1'.
    unit: the device of the task, such as 'GPU:0'.
  """
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
  return {
    'kind': kind,
    'name': op,
    'args': {'op': node.node_name, 'device': unit},
  }
