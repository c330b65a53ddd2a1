"""What Kubernetes says about a run: pure, from the JSON of `kubectl get`."""

import dataclasses

from distmnist.launching.kubernetes import objects


@dataclasses.dataclass(frozen=True)
class Watched:
  """How the chief of a run is found.

  Attributes:
    kind, name: str, the object that ends when the run does.
    selector: str, of the labels of this object and of the Pods.
    chief: str, how the names of the chief's Pods begin.
  """

  kind: str
  name: str
  selector: str
  chief: str

  @property
  def path(self):
    return f'{self.kind.lower()}/{self.name}'


_CHIEFS = {
  'job': '{}-worker-0-',
  'jobset': '{}-chief-0-0-',
  'tfjob': '{}-chief-0',
  'trainjob': '{}-chief-0-0-',
}
# The value of --kind -> the kind of the object.
_KINDS = {kind.lower(): kind for kind in objects.WORKLOADS}


def watch(options):
  """Returns the Watched of a run with these options.Options."""
  is_job = options.kind == 'job'
  return Watched(
    _KINDS[options.kind],
    f'{options.name}-worker-0' if is_job else options.name,
    objects.select(objects.labels_of(options)),
    _CHIEFS[options.kind].format(options.name),
  )


def find_outcome(document):
  """Returns whether an object (dict) has ended well, None before its end."""
  meanings = objects.WORKLOADS[document['kind']]
  for condition in document.get('status', {}).get('conditions', []):
    if condition['status'] == 'True' and condition['type'] in meanings:
      return meanings[condition['type']]
  return None


def find_chief(pods, watched):
  """Returns the chief's newest Pod (dict), None before there is one."""
  found = [
    pod for pod in pods if pod['metadata']['name'].startswith(watched.chief)
  ]
  return max(found, key=_get_age, default=None)


def _get_age(pod):
  return pod['metadata'].get('creationTimestamp', '')


def has_started(pod):
  """Whether a Pod (dict) has a log."""
  state = _get_state(pod)
  return 'running' in state or 'terminated' in state


def find_code(pod):
  """Returns the exit code (int) of a Pod (dict), None before its end."""
  return _get_state(pod).get('terminated', {}).get('exitCode')


def find_first_failure(pods):
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


def explain_waiting(pods):
  """Returns why Pods do not run yet (str), '' if all do."""
  waiting = {}
  for pod in pods:
    if not has_started(pod):
      waiting.setdefault(_explain(pod), []).append(pod['metadata']['name'])
  return '; '.join(
    f'{", ".join(sorted(names))}: {why}' for why, names in waiting.items()
  )


def _explain(pod):
  state = _get_state(pod).get('waiting', {})
  if state:
    said = (state.get('reason'), state.get('message'))
    return ': '.join(filter(None, said)) or 'waiting'
  for condition in pod['status'].get('conditions', []):
    if condition['type'] == 'PodScheduled' and condition['status'] == 'False':
      return condition.get('message') or condition.get('reason', 'unscheduled')
  return pod['status'].get('phase', 'Pending')


def _get_state(pod):
  """Returns the state (dict) of the container of a task."""
  statuses = pod.get('status', {}).get('containerStatuses') or [{}]
  ours = [s for s in statuses if s.get('name') == 'tensorflow'] or statuses
  return ours[0].get('state', {})
