"""A run on Kubernetes by kubectl, from its creation to its end.

What this launcher creates has a label of its own, `launch`, by which alone it
is watched and deleted: nothing of another run is changed, whatever its name.
"""

from __future__ import annotations

import logging
import math
import signal
import subprocess
import threading
import time

from distmnist.common import cli, signals
from distmnist.launching.kubernetes import kubectl, run_status
from distmnist.launching.kubernetes.kubectl import Object
from distmnist.launching.kubernetes.manifests import (
  KILL_MARGIN_SECS,
  WORKLOADS,
  Options,
)

_log = logging.getLogger(__name__)

# How often to ask the cluster.
TICK_SECS = 2.0
END_TICK_SECS = 0.5
# How long Kubernetes may take to remove Pods, beyond their time to save.
_REMOVAL_SECS = 30
# How long a log may take to end after its Pod has, or another is there.
_LOG_SECS = 30.0
# Without an answer for so long, that is said.
SILENT_SECS = 30.0
# kubectl asks for one object after the other.
_SECS_PER_OBJECT = 0.5


def run(options: Options, documents: list[Object], text: str) -> int:
  """Creates the run, and shows the chief's log until the end.

  The first of SIGINT, SIGTERM and SIGHUP ends the run: its tasks save, then
  all of its objects are deleted. The second leaves that to Kubernetes.

  Args:
    documents: the manifests, with the label `launch`.
    text: the same as YAML.

  Returns:
    The exit code of the chief; 128 + n after signal n, 75 if the chief was then
    seen to end without having saved.

  Raises:
    cli.RunError: kubectl is missing, or refuses; or an object of one of these
      names exists.
  """
  received: list[int] = []
  with signals.collecting(received):
    launched = _Run(options, documents, received)
    launched.create(text)
    try:
      code = launched.wait()
      if code is None:
        code = launched.end()
    finally:
      launched.close()
  return code


class _Run:
  """The objects of one launch, the chief's log, and the Pods as last seen."""

  def __init__(
    self, options: Options, documents: list[Object], received: list[int]
  ) -> None:
    self._client = kubectl.Kubectl('apply', options.namespace)
    self._options = options
    self._documents = documents
    self._received = received
    # Of the object that ends when the run does.
    self._kind = WORKLOADS[options.kind]
    is_job = options.kind == 'job'
    self._name = options.name + ('-worker-0' if is_job else '')
    # How the names of the chief's Pods begin.
    self._chief = options.name + ('-worker-0-' if is_job else '-chief-0-0-')
    self._selector = f'run={options.name},launch={options.launch}'
    self._pods: dict[str, Object] = {}
    self._log_of = ''
    self._process: subprocess.Popen[bytes] | None = None
    self._said = ''
    self._silent_since: float | None = None  # inf once that was said

  def create(self, text: str) -> None:
    """Creates all objects, or none of them.

    Raises:
      cli.RunError: one of them exists, or cannot be created.
    """
    options = self._options
    limit_secs = kubectl.ANSWER_SECS + _SECS_PER_OBJECT * len(self._documents)
    if found := self._client.find(text, limit_secs):
      meta = found[0]['metadata']
      since = meta.get('creationTimestamp', 'some time')
      others = f' and {len(found) - 1} more objects' if found[1:] else ''
      place = f' --namespace {options.namespace}' if options.namespace else ''
      raise cli.RunError(
        f'{found[0]["kind"].lower()}/{meta["name"]}{others} of --kube_name='
        f'{options.name} exist on Kubernetes since {since}, and are left as '
        f'they are: give another --kube_name, or end that run by kubectl{place}'
        f' delete {_list_kinds(self._documents)} --selector run={options.name}'
      )
    try:
      words = 'create', '-f', '-'
      self._client.change(*words, text=text, timeout_secs=limit_secs)
    except cli.RunError:
      # Another launcher may have created some in this moment, or a right may be
      # missing. What is there is of no use without the rest.
      try:
        self._delete(self._documents)
      except cli.RunError as error:
        _log.info(
          f'what was created of {options.name} may still be there: {error}'
        )
      raise
    _log.info(f'{self._path} is created: the log of the chief follows')

  @property
  def _path(self) -> str:
    return f'{self._kind.lower()}/{self._name}'

  def _delete(self, documents: list[Object]) -> None:
    """Deletes what this launcher has created of the kinds of manifests."""
    self._client.change(
      *('delete', _list_kinds(documents), '--selector', self._selector),
      *('--ignore-not-found', '--wait=false'),
    )

  def wait(self) -> int | None:
    """Returns the exit code of the run, None if a signal comes before its end.

    Raises:
      cli.RunError: somebody else has deleted it.
    """
    while not self._received:
      found = self._look()
      if found is not None:
        named = [d for d in found if d['metadata']['name'] == self._name]
        if not named:
          raise cli.RunError(f'{self._path} was deleted by somebody else')
        outcome = run_status.find_outcome(named[0])
        if outcome is not None:
          self._finish_log()
          return 0 if outcome else self._report()
      threading.Event().wait(TICK_SECS)
    return None

  def _look(self) -> list[Object] | None:
    """Shows what is new; returns the objects that run tasks, and the Pods.

    None if there is no answer.
    """
    # In this order: the Pods that are seen at the end are the last.
    kinds = f'{self._kind.lower()},pods'
    found = self._client.get(kinds, '--selector', self._selector)
    self._note_answer()
    if found is None:
      return None
    pods = [each for each in found if each['kind'] == 'Pod']
    self._pods |= {pod['metadata']['name']: pod for pod in pods}
    why = run_status.explain_waiting(pods)
    if why != self._said:
      self._said = why
      if why:
        _log.info(f'not started yet: {why}')
    chief = run_status.find_newest(pods, self._chief)
    if chief and run_status.has_started(chief):
      self._follow(chief)
    return found

  def _note_answer(self) -> None:
    """Says once why the cluster does not answer, if that goes on for long."""
    now, error = time.monotonic(), self._client.error
    if not error:
      self._silent_since = None
    elif self._silent_since is None:
      self._silent_since = now
    elif now > self._silent_since + SILENT_SECS:
      self._silent_since = math.inf
      _log.info(f'nothing is known of the run for now, asking on: {error}')

  def _follow(self, pod: Object) -> None:
    name = pod['metadata']['name']
    is_new = name != self._log_of
    is_cut = self._process is not None and self._process.poll() is not None
    if is_new or (is_cut and run_status.find_code(pod) is None):
      self._finish_log()
      self._process = self._client.follow(name, is_new)
      self._log_of = name

  def _finish_log(self) -> None:
    """Lets the log that is shown come to its end, unless a signal comes."""
    deadline = time.monotonic() + _LOG_SECS
    while (
      self._process is not None
      and self._process.poll() is None
      and not self._received
      and time.monotonic() < deadline
    ):
      threading.Event().wait(0.1)
    self.close()

  def _report(self) -> int:
    """Names the task that failed first; returns the chief's exit code."""
    failure = run_status.find_first_failure(self._pods.values())
    if failure:
      name, code, reason = failure
      _log.info(
        f'error: {name} failed first: exit code {code}'
        f'{f" ({reason})" if reason else ""}'
      )
    else:
      _log.info(f'error: {self._path} has failed; see kubectl describe')
    return self._find_code() or cli.FAILED

  def _find_code(self) -> int | None:
    """Returns the exit code of the chief, None if it was not seen to end."""
    chief = run_status.find_newest(self._pods.values(), self._chief)
    return run_status.find_code(chief) if chief else None

  def end(self) -> int:
    """Has the tasks save and removes the run; returns the exit code."""
    name = signal.Signals(self._received[0]).name
    _log.info(f'{name}: the tasks are told to save and leave')
    limit_secs = (
      self._options.stop_grace_secs + KILL_MARGIN_SECS + _REMOVAL_SECS
    )
    deadline = time.monotonic() + limit_secs
    # Not the Services and policies: a task that saves needs the others.
    self._delete_by(
      deadline, [d for d in self._documents if d['kind'] == self._kind]
    )
    # More often than else: a Pod that has ended is soon gone, with its code.
    while time.monotonic() < deadline and len(self._received) < 2:
      found = self._look()
      if found is not None and 'Pod' not in {d['kind'] for d in found}:
        break
      threading.Event().wait(END_TICK_SECS)
    if len(self._received) > 1:
      _log.info(
        'the rest is left to Kubernetes, which kills what does not leave'
      )
    self._delete_by(time.monotonic() + _REMOVAL_SECS, self._documents)
    if self._find_code() == cli.NOT_SAVED:
      _log.info('not all is saved: see the last lines of the chief')
      return cli.NOT_SAVED
    return 128 + self._received[0]

  def _delete_by(self, deadline: float, documents: list[Object]) -> None:
    """Deletes objects; tries again while the server is away.

    Raises:
      cli.RunError: it still is at the deadline, or another signal came.
    """
    while True:
      try:
        self._delete(documents)
        return
      except cli.RunError as error:
        if time.monotonic() > deadline or len(self._received) > 1:
          raise cli.RunError(
            f'{error}: what is left of the run goes on; end it by kubectl'
            f' delete {_list_kinds(documents)} --selector {self._selector}'
          ) from error
      threading.Event().wait(END_TICK_SECS)

  def close(self) -> None:
    if self._process is not None and self._process.poll() is None:
      self._process.kill()
      self._process.wait()


def _list_kinds(documents: list[Object]) -> str:
  """Returns the kinds of manifests as kubectl takes them."""
  return ','.join(dict.fromkeys(d['kind'].lower() for d in documents))
