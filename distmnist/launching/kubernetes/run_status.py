"""The status of a run on Kubernetes: pure, from the JSON of `kubectl get`."""

from __future__ import annotations

from collections.abc import Iterable

from distmnist.launching.kubernetes.kubectl import Object

# The conditions that say how each kind of object has ended: whether well.
_ENDS = {
  'Job': {'Complete': True, 'Failed': False},
  'JobSet': {'Completed': True, 'Failed': False},
  'TrainJob': {'Complete': True, 'Failed': False},
}


def find_outcome(document: Object) -> bool | None:
  """Returns whether an object has ended well, None before its end."""
  ends = _ENDS[document['kind']]
  for condition in document.get('status', {}).get('conditions', []):
    if condition['status'] == 'True' and condition['type'] in ends:
      return ends[condition['type']]
  return None


def find_newest(pods: Iterable[Object], prefix: str) -> Object | None:
  """Returns the newest Pod whose name begins so, None before there is one."""
  found = [p for p in pods if p['metadata']['name'].startswith(prefix)]
  return max(
    found,
    key=lambda pod: pod['metadata'].get('creationTimestamp', ''),
    default=None,
  )


def has_started(pod: Object) -> bool:
  """Whether a Pod has a log."""
  state = _get_state(pod)
  return 'running' in state or 'terminated' in state


def find_code(pod: Object) -> int | None:
  """Returns the exit code of a Pod, None before its end."""
  return _get_state(pod).get('terminated', {}).get('exitCode')


def find_first_failure(pods: Iterable[Object]) -> tuple[str, int, str] | None:
  """Returns (task, exit code, reason) of the Pod that failed first, or None."""
  ended = [
    (state['finishedAt'] or '', pod, state)
    for pod in pods
    if (state := _get_state(pod).get('terminated')) and state['exitCode']
  ]
  if not ended:
    return None
  _, pod, state = min(ended, key=lambda each: each[0])
  reason = pod['status'].get('reason') or state.get('reason') or ''
  return pod['metadata']['name'], state['exitCode'], reason


def explain_waiting(pods: Iterable[Object]) -> str:
  """Returns why Pods do not run yet, '' if all do."""
  waiting = {}
  for pod in pods:
    if not has_started(pod):
      waiting.setdefault(_explain(pod), []).append(pod['metadata']['name'])
  return '; '.join(
    f'{", ".join(sorted(names))}: {why}' for why, names in waiting.items()
  )


def _explain(pod: Object) -> str:
  state = _get_state(pod).get('waiting', {})
  if state:
    said = (state.get('reason'), state.get('message'))
    return ': '.join(filter(None, said)) or 'waiting'
  for condition in pod['status'].get('conditions', []):
    if condition['type'] == 'PodScheduled' and condition['status'] == 'False':
      return condition.get('message') or condition.get('reason', 'unscheduled')
  return pod['status'].get('phase', 'Pending')


def _get_state(pod: Object) -> Object:
  """Returns the state of the container of a task."""
  statuses = pod.get('status', {}).get('containerStatuses') or [{}]
  ours = [s for s in statuses if s.get('name') == 'tensorflow'] or statuses
  return ours[0].get('state', {})
