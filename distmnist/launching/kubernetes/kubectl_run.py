"""A run on Kubernetes by kubectl, from its creation to its end.

What this launcher creates has a label of its own, `launch`, by which alone it
is watched and deleted: nothing of another run is changed, whatever its name.
kubectl is the user's own: their cluster, their rights, their plugins.
"""

import json
import logging
import shutil
import signal
import subprocess
import threading

from distmnist.common import cli, signals
from distmnist.launching.kubernetes import objects, run_status
from distmnist.launching.kubernetes import pods as pods_lib

_log = logging.getLogger(__name__)

# How often to ask the cluster.
TICK_SECS = 2.0
END_TICK_SECS = 0.5
# How long Kubernetes may take to remove Pods, beyond their time to save.
_REMOVAL_SECS = 30
# kubectl asks for one object after the other.
_SECS_PER_OBJECT = 0.5
# A server that does not answer must not hold up a second signal.
ANSWER_SECS = 30.0
_AS_JSON = '--ignore-not-found', '-o', 'json'


def run(options, documents, text):
  """Creates the run, and shows the chief's log until the end.

  The first of SIGINT, SIGTERM and SIGHUP ends the run: its tasks save, then
  all of its objects are deleted. The second leaves that to Kubernetes.

  Args:
    options: options.Options.
    documents: list of dict, the manifests, with the label `launch`.
    text: str, the same as YAML.

  Returns:
    int, the exit code of the chief; 128 + n after signal n, 75 if the chief was
    then seen to end without having saved.

  Raises:
    cli.RunError: kubectl is missing, or refuses; or an object of one of these
      names exists.
    cli.UsageError: a patch has taken the label away.
  """
  _check_labels(options, documents)
  client = Kubectl(options.namespace)
  received = []
  with signals.collecting(received):
    _create(client, options, documents, text)
    watched = run_status.watch(options)
    _log.info(f'{watched.path} is created: the log of the chief follows')
    follower = _Follower(client, watched, received)
    try:
      code = follower.wait()
      if received:
        code = _end(follower, options, documents)
    finally:
      follower.close()
  return code


def _check_labels(options, documents):
  for document in documents:
    if document['metadata'].get('labels', {}).get('launch') != options.launch:
      raise cli.UsageError(
        f'--kube_patch takes the label launch from {_name(document)}, by which '
        '--apply finds what it has created: expected a patch that adds to '
        'metadata.labels'
      )


def _create(client, options, documents, text):
  """Creates all objects, or none of them.

  Raises:
    cli.RunError: one of them exists, or cannot be created.
  """
  limit_secs = ANSWER_SECS + _SECS_PER_OBJECT * len(documents)
  if found := client.find(text, limit_secs):
    meta = found[0]['metadata']
    since = meta.get('creationTimestamp', 'some time')
    others = f' and {len(found) - 1} more objects' if found[1:] else ''
    place = f' --namespace {options.namespace}' if options.namespace else ''
    raise cli.RunError(
      f'{_name(found[0])}{others} of --kube_name={options.name} exist on '
      f'Kubernetes since {since}, and are left as they are: give another '
      f'--kube_name, or end that run by kubectl{place} delete '
      f'{_list_kinds(documents)} --selector run={options.name}'
    )
  try:
    client.change('create', '-f', '-', text=text, timeout_secs=limit_secs)
  except cli.RunError:
    # Another launcher may have created some in this moment, or a right may be
    # missing. What is there is of no use without the rest.
    try:
      _delete(client, options, documents)
    except cli.RunError as error:
      _log.info(
        f'what was created of {options.name} may still be there: {error}'
      )
    raise


def _delete(client, options, documents):
  """Deletes what this launcher has created of the kinds of these manifests."""
  labels = {'run': options.name, 'launch': options.launch}
  client.change(
    *('delete', _list_kinds(documents), '--selector', objects.select(labels)),
    *('--ignore-not-found', '--wait=false'),
  )


def _list_kinds(documents):
  """Returns the kinds of manifests (str) as kubectl takes them."""
  return ','.join(dict.fromkeys(d['kind'].lower() for d in documents))


def _name(document):
  return f'{document["kind"].lower()}/{document["metadata"]["name"]}'


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
      document, is_gone = self._find_object()
      outcome = run_status.find_outcome(document) if document else None
      self.look()
      if is_gone:
        raise cli.RunError(f'{self.watched.path} was deleted by somebody else')
      if outcome is not None:
        self.finish_log()
        return 0 if outcome else self._report()
      threading.Event().wait(TICK_SECS)
    return 128 + self.received[0]

  def _find_object(self):
    """Returns (the object that is watched or None, whether it is gone)."""
    found = self.client.get(
      self.watched.kind.lower(), '--selector', self.watched.selector
    )
    if found is None:
      return None, False
    named = [d for d in found if d['metadata']['name'] == self.watched.name]
    return (named[0], False) if named else (None, True)

  def look(self):
    """Asks for the Pods and shows what is new; returns the current Pods."""
    pods = self.client.get('pods', '--selector', self.watched.selector)
    if pods is None:
      return None
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


def _end(follower, options, documents):
  """Has the tasks save and removes the run; returns the exit code."""
  name = signal.Signals(follower.received[0]).name
  _log.info(f'{name}: the tasks are told to save and leave')
  code = 128 + follower.received[0]
  # Not the Services and policies: a task that saves needs the others.
  tasks = [d for d in documents if d['kind'] in objects.WORKLOADS]
  _delete(follower.client, options, tasks)
  grace_secs = options.stop_grace_secs + pods_lib.KILL_MARGIN_SECS
  # More often than else: a Pod that has ended is soon gone, with its code.
  for _ in range(round((grace_secs + _REMOVAL_SECS) / END_TICK_SECS)):
    if follower.look() == [] or len(follower.received) > 1:
      break
    threading.Event().wait(END_TICK_SECS)
  if len(follower.received) > 1:
    _log.info('the rest is left to Kubernetes, which kills what does not leave')
  _delete(follower.client, options, documents)
  chief = run_status.find_chief(follower.pods.values(), follower.watched)
  if chief and run_status.find_code(chief) == cli.NOT_SAVED:
    _log.info('not all is saved: see the last lines of the chief')
    return cli.NOT_SAVED
  return code


class Kubectl:
  """kubectl in one namespace."""

  def __init__(self, namespace):
    """
    Args:
      namespace: str, or None for that of kubectl's context.

    Raises:
      cli.RunError: there is no kubectl.
    """
    if not shutil.which('kubectl'):
      raise cli.RunError(
        'no kubectl on this machine: install it, or leave out --apply and take '
        'the manifests to a machine that has it'
      )
    self._base = ['kubectl', *(['--namespace', namespace] if namespace else [])]

  def change(self, *words, text=None, timeout_secs=None):
    """Runs kubectl with `text` (str) as its stdin; returns what it says (str).

    Raises:
      cli.RunError: it fails, in its own words, or has not ended in time.
    """
    done = self._run(words, text, timeout_secs)
    if done.returncode:
      said = ' '.join(done.stderr.split()) or f'exit code {done.returncode}'
      raise cli.RunError(f'kubectl {words[0]}: {said}')
    return done.stdout

  def find(self, text, timeout_secs):
    """Returns those objects (list of dict) of manifests (str) that exist.

    Raises:
      cli.RunError: there is no answer.
    """
    said = self.change(
      *('get', '-f', '-', *_AS_JSON), text=text, timeout_secs=timeout_secs
    )
    return _read_items(said)

  def get(self, *words):
    """Returns what `kubectl get` finds (list of dict).

    None if there is no answer: a server may be away for a moment.
    """
    try:
      return _read_items(self.change('get', *words, *_AS_JSON))
    except cli.RunError:
      return None

  def follow(self, pod, is_new):
    """Returns the subprocess.Popen that copies a Pod's log to our stdout.

    Args:
      pod: str, its name.
      is_new: bool, whether the lines so far are wanted too.
    """
    tail = [] if is_new else ['--tail=0']
    return subprocess.Popen(
      [*self._base, 'logs', '--follow', *tail, f'pod/{pod}'],
      stdin=subprocess.DEVNULL,
      start_new_session=True,  # A Ctrl-C is ours to pass on.
    )

  def _run(self, words, text, timeout_secs):
    timeout_secs = timeout_secs or ANSWER_SECS
    try:
      return subprocess.run(
        [*self._base, *words],
        input=text or '',
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=timeout_secs,
      )
    except subprocess.TimeoutExpired as error:
      raise cli.RunError(
        f'kubectl {words[0]} has not answered within {timeout_secs:g} s: see'
        ' kubectl cluster-info'
      ) from error


def _read_items(said):
  """Returns the objects (list of dict) in the JSON that kubectl prints."""
  found = json.loads(said) if said.strip() else {'items': []}
  return found.get('items', [found])
