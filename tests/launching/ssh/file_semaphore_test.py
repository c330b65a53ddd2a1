"""file_semaphore: some of many processes are through at a time."""

import contextlib
import subprocess
import sys

from distmnist.launching.ssh import file_semaphore
from tests.support.runner import REPO

ENTER = """
import sys
from distmnist.launching.ssh import file_semaphore
gate = file_semaphore.FileSemaphore(sys.argv[1], 2)
assert gate.enter(lambda secs: False)
print('in', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def hold_place(path):
  """Another process is through until the end of the context."""
  with subprocess.Popen(
    [sys.executable, '-c', ENTER, str(path)],
    cwd=REPO,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'in\n'
    yield process


def test_as_many_are_through_as_there_are_places(tmp_path):
  path = tmp_path / 'a host'
  gate = file_semaphore.FileSemaphore(str(path), 2)
  with hold_place(path):
    assert gate.enter(lambda secs: True)
    gate.leave()
    with hold_place(path):
      # A process told to leave meanwhile gives up.
      assert not gate.enter(lambda secs: True)
    assert gate.enter(lambda secs: True)
    gate.leave()
    gate.leave()


def test_who_was_killed_has_left(tmp_path):
  path = tmp_path / 'a host'
  gate, pauses = file_semaphore.FileSemaphore(str(path), 2), []
  with hold_place(path) as first, hold_place(path):

    def pause(secs):
      pauses.append(secs)
      first.kill()
      first.wait()
      return False

    assert gate.enter(pause)
  assert len(pauses) == 1
  gate.leave()
