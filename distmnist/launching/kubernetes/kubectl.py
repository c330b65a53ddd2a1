"""The user's own kubectl: their cluster, their rights, their plugins."""

import json
import shutil
import subprocess

from distmnist.common import cli

# A server that does not answer must not hold up a second signal.
ANSWER_SECS = 30.0
_AS_JSON = '--ignore-not-found', '-o', 'json'


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
