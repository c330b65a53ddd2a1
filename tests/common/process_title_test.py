"""The kernel's part is played by a buffer, except in one test."""

import ctypes
import io
import subprocess
import sys

import pytest

from distmnist.common import process_title
from tests.support.paths import REPO

COMMAND = b'python\0-m\0train\0'
BEHIND = b'HOME=/root\0'


@pytest.fixture
def memory():
  """A command line as it lies in memory, with the environment behind it."""
  return ctypes.create_string_buffer(COMMAND + BEHIND)


@pytest.fixture
def show(monkeypatch):
  """show(start, end): where the kernel says that the command line lies."""

  def show_addresses(start, end):
    # The name of the program may have blanks and parentheses in it.
    fields = ['S', *map(str, range(4, 48)), str(start), str(end), '0']
    text = f'7 (a) b (c) {" ".join(fields)}\n'
    monkeypatch.setattr(
      process_title, 'open', lambda *_, **__: io.StringIO(text), raising=False
    )

  return show_addresses


@pytest.mark.parametrize(
  ('title', 'shown'),
  [
    ('ps 0', b'ps 0' + bytes(12)),
    ('', bytes(16)),
    ('worker 0 /run/7', b'worker 0 /run/7\0'),
    ('worker 0 /run/7 is too long', b'worker 0 /run/7\0'),
    ('wörker', b'w\xc3\xb6rker' + bytes(9)),
  ],
)
def test_the_title_takes_the_room_of_the_command_line(
  memory, show, title, shown
):
  assert len(COMMAND) == 16
  start = ctypes.addressof(memory)
  show(start, start + len(COMMAND))
  process_title.set_title(title)
  assert memory.raw == shown + BEHIND + b'\0'


def test_addresses_that_are_hidden_are_not_written_to(memory, show):
  show(0, 0)
  process_title.set_title('ps 0')
  assert memory.raw == COMMAND + BEHIND + b'\0'


@pytest.mark.parametrize('error', [FileNotFoundError, PermissionError])
def test_without_proc_nothing_happens(monkeypatch, error):
  asked = []

  def refuse(path, **_):
    asked.append(path)
    raise error(path)

  monkeypatch.setattr(process_title, 'open', refuse, raising=False)
  process_title.set_title('ps 0')
  assert asked == ['/proc/self/stat']


@pytest.mark.slow
def test_the_kernel_shows_it():
  code = (
    'from distmnist.common import process_title\n'
    "process_title.set_title('distmnist ps 0')\n"
    "print(open('/proc/self/cmdline').read().strip(chr(0)))"
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, cwd=REPO
  )
  assert (done.stdout, done.stderr) == ('distmnist ps 0\n', '')
