"""A run on Kubernetes by kubectl, from its creation to its end."""

import logging
import signal
import threading

from distmnist.common import cli, signals
from distmnist.launching.kubernetes import kubectl, objects, run_status
from distmnist.launching.kubernetes import pods as pods_lib

_log = logging.getLogger(__name__)

# How often to ask the cluster.
TICK_SECS = 2.0
END_TICK_SECS = 0.5
# How long Kubernetes may take to remove Pods, beyond their time to save.
_REMOVAL_SECS = 30


def run(options, documents, text):
  """Creates the run, and shows the chief's log until the end.

  The first of SIGINT, SIGTERM and SIGHUP ends the run: its tasks save, then
  all of its objects are deleted. The second leaves that to Kubernetes.

  Args:
    options: options.Options.
    documents: list of dict, the manifests.
    text: str, the same as YAML.

  Returns:
    int, the exit code of the chief; 128 + n after signal n, 75 if the chief was
    then seen to end without having saved.

  Raises:
    cli.RunError: kubectl is missing, or refuses.
  """
  client = kubectl.Kubectl(options.namespace)
  received = []
  with signals.collecting(received):
    client.change('apply', '-f', '-', text=text)
    watched = run_status.watch(options)
    _log.info(f'{watched.path} is created: the log of the chief follows')
    follower = _Follower(client, watched, received)
    try:
      code = follower.wait()
      if received:
        code = _end(follower, options, documents, text)
    finally:
      follower.close()
  return code


class _Follower:
  """Shows the chief's log and remembers the run's Pods as last seen."""

  def __init__(self, client, watched, received):
    self.client = client
    self.watched = watched
    self.received = received
    self.pods = {}
    self._log_of = self._process = None
    self._said = ''

  def wait(self):
    """Waits for the end of the run, or a signal; returns the exit code."""
    while not self.received:
      # Before the Pods, so that those seen at the end are the last.
      document = self.client.get(self.watched.path)
      outcome = run_status.find_outcome(document) if document else None
      self.look()
      if document == {}:
        raise cli.RunError(f'{self.watched.path} was deleted by somebody else')
      if outcome is not None:
        self.finish_log()
        return 0 if outcome else self._report()
      threading.Event().wait(TICK_SECS)
    return 128 + self.received[0]

  def look(self):
    """Asks for the Pods and shows what is new; returns the current Pods."""
    found = self.client.get('pods', '--selector', self.watched.selector)
    if found is None:
      return None
    pods = found.get('items', [])
    self.pods |= {pod['metadata']['name']: pod for pod in pods}
    why = run_status.explain_waiting(pods)
    if why != self._said:
      self._said = why
      if why:
        _log.info(f'not started yet: {why}')
    chief = run_status.find_chief(pods, self.watched)
    if chief and run_status.has_started(chief):
      self._follow(chief)
    return pods

  def _follow(self, pod):
    name = pod['metadata']['name']
    is_new = name != self._log_of
    is_cut = self._process is not None and self._process.poll() is not None
    if is_new or (is_cut and run_status.find_code(pod) is None):
      self.finish_log()
      self._process = self.client.follow(name, is_new)
      self._log_of = name

  def finish_log(self):
    """Waits until the log that is shown has ended."""
    if self._process is not None:
      while self._process.poll() is None and len(self.received) < 2:
        threading.Event().wait(0.1)

  def close(self):
    if self._process is not None and self._process.poll() is None:
      self._process.kill()
      self._process.wait()

  def _report(self):
    """Names the task that failed first; returns the chief's exit code."""
    pods = self.pods.values()
    failure = run_status.find_first_failure(pods)
    if failure:
      name, code, reason = failure
      _log.info(
        f'error: {name} failed first: exit code {code}'
        f'{f" ({reason})" if reason else ""}'
      )
    else:
      _log.info(f'error: {self.watched.path} has failed; see kubectl describe')
    chief = run_status.find_chief(pods, self.watched)
    return (chief and run_status.find_code(chief)) or cli.FAILED


def _end(follower, options, documents, text):
  """Has the tasks save and removes the run; returns the exit code."""
  name = signal.Signals(follower.received[0]).name
  _log.info(f'{name}: the tasks are told to save and leave')
  code = 128 + follower.received[0]
  # Not the Services and policies: a task that saves needs the others.
  tasks = [
    f'{document["kind"].lower()}/{document["metadata"]["name"]}'
    for document in documents
    if document['kind'] in objects.WORKLOADS
  ]
  words = '--ignore-not-found', '--wait=false'
  follower.client.change('delete', *tasks, *words)
  grace_secs = options.stop_grace_secs + pods_lib.KILL_MARGIN_SECS
  # More often than else: a Pod that has ended is soon gone, with its code.
  for _ in range(round((grace_secs + _REMOVAL_SECS) / END_TICK_SECS)):
    if follower.look() == [] or len(follower.received) > 1:
      break
    threading.Event().wait(END_TICK_SECS)
  if len(follower.received) > 1:
    _log.info('the rest is left to Kubernetes, which kills what does not leave')
  follower.client.change('delete', '-f', '-', *words, text=text)
  chief = run_status.find_chief(follower.pods.values(), follower.watched)
  if chief and run_status.find_code(chief) == cli.NOT_SAVED:
    _log.info('not all is saved: see the last lines of the chief')
    return cli.NOT_SAVED
  return code
