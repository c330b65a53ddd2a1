"""kubectl, the user's own: with their cluster, their rights, their plugins."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from distmnist.common import cli

# A server that does not answer must not hold up a second signal.
ANSWER_SECS = 30.0
_AS_JSON = '--ignore-not-found', '-o', 'json'
# An object of Kubernetes, or a part of one, as its JSON has it.
Object = dict[str, Any]


class Kubectl:
  """kubectl in one namespace.

  Attributes:
    error: why the last `get` had no answer, or None.
  """

  def __init__(self, flag: str, namespace: str | None = None) -> None:
    """
    Args:
      flag: of launch, which needs it.
      namespace: None for that of kubectl's context.

    Raises:
      cli.RunError: there is no kubectl.
    """
    if not shutil.which('kubectl'):
      raise cli.RunError(
        f'no kubectl on this machine, which --{flag} needs: install it, or '
        f'leave out --{flag} and take the manifests to a machine that has it'
      )
    self.error: cli.RunError | None = None
    self._base = ['kubectl', *(['--namespace', namespace] if namespace else [])]

  def change(
    self, *words: str, text: str = '', timeout_secs: float | None = None
  ) -> str:
    """Runs kubectl with `text` as its stdin; returns what it says.

    Raises:
      cli.RunError: it fails, in its own words, or has not ended in time.
    """
    timeout_secs = timeout_secs or ANSWER_SECS
    try:
      done = subprocess.run(
        [*self._base, *words],
        input=text,
        capture_output=True,
        text=True,
        start_new_session=True,  # A Ctrl-C is ours to pass on.
        timeout=timeout_secs,
      )
    except subprocess.TimeoutExpired as error:
      raise cli.RunError(
        f'kubectl {words[0]} has not answered within {timeout_secs:g} s: see'
        ' kubectl cluster-info'
      ) from error
    if done.returncode:
      said = ' '.join(done.stderr.split()) or f'exit code {done.returncode}'
      raise cli.RunError(f'kubectl {words[0]}: {said}')
    return done.stdout

  def find(self, text: str, timeout_secs: float) -> list[Object]:
    """Returns those objects of manifests that exist.

    Raises:
      cli.RunError: there is no answer.
    """
    words = 'get', '-f', '-', *_AS_JSON
    return _read_items(
      self.change(*words, text=text, timeout_secs=timeout_secs)
    )

  def get(self, *words: str) -> list[Object] | None:
    """Returns what `kubectl get` finds.

    None if there is no answer: a server may be away for a moment.
    """
    self.error = None
    try:
      return _read_items(self.change('get', *words, *_AS_JSON))
    except cli.RunError as error:
      self.error = error
      return None

  def follow(self, pod: str, is_new: bool) -> subprocess.Popen[bytes]:
    """Returns the process that copies a Pod's log to our stdout.

    Args:
      pod: its name.
      is_new: whether the lines so far are wanted too.
    """
    tail = [] if is_new else ['--tail=0']
    return subprocess.Popen(
      [*self._base, 'logs', '--follow', *tail, f'pod/{pod}'],
      stdin=subprocess.DEVNULL,
      start_new_session=True,
    )


def _read_items(said: str) -> list[Object]:
  """Returns the objects in the JSON that kubectl prints."""
  found = json.loads(said) if said.strip() else {'items': []}
  return found.get('items', [found])
