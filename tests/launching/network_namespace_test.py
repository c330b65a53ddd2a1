"""Each in a process of its own: pytest has threads, which no fork takes along.

What a namespace is for, and how tasks enter it, is tested in launch_test.py and
fork_server_test.py.
"""

import os
import subprocess
import sys

import pytest

from tests.support.paths import REPO

PRELUDE = """
import ctypes, os, socket, traceback
import encodings.idna  # a file that who drops his rights may not read
from distmnist.launching import network_namespace

def drop_rights():
  os.setgroups([])
  os.setgid(65534)
  os.setuid(65534)
  # As after an exec; else /proc/self belongs to root.
  ctypes.CDLL(None).prctl(4, 1)

def names():
  return [name for _, name in socket.if_nameindex()]

def run_inside(namespace, check):
  if os.fork() == 0:
    code = 1
    try:
      namespace.enter()
      check()
      code = 0
    except BaseException:
      traceback.print_exc()
    finally:
      os._exit(code)
  assert os.wait()[1] == 0

def check_loopback():
  assert names() == ['lo'], names()
  server = socket.create_server(('127.0.0.1', 2222))
  socket.create_connection(('127.0.0.1', 2222), timeout=5)
  assert (os.geteuid(), os.getegid()) == ids

ids = os.geteuid(), os.getegid()
"""


def run(code):
  done = subprocess.run(
    [sys.executable, '-c', PRELUDE + code],
    cwd=REPO,
    capture_output=True,
    text=True,
    timeout=200,
  )
  error = done.stderr.strip().splitlines()[-1:]
  if error and 'cannot create a network namespace' in error[0]:
    pytest.skip(error[0])
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.slow
def test_inside_there_is_loopback_alone_and_outside_all_is_as_before():
  """Two share no port, no other program inherits one, each can be closed."""
  run(
    'before = names()\n'
    'first, second = [network_namespace.make_namespace() for _ in range(2)]\n'
    'def check():\n'
    '  server = socket.create_server(("127.0.0.1", 2222))\n'
    '  run_inside(second, check_loopback)\n'
    'run_inside(first, check)\n'
    'assert names() == before\n'
    'fds = list(first.fds)\n'
    'assert not any(map(os.get_inheritable, fds))\n'
    'first.close()\n'
    'for fd in fds:\n'
    "  assert not os.path.exists(f'/proc/self/fd/{fd}')\n"
    # What is no namespace cannot be entered.
    'fd = os.open(os.devnull, os.O_RDONLY)\n'
    'try:\n'
    '  network_namespace.Namespace([fd]).enter()\n'
    'except OSError as error:\n'
    "  assert error.filename == 'setns', error\n"
    'else:\n'
    '  raise AssertionError\n'
  )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can drop its rights')
def test_a_user_without_rights_gets_one_and_stays_himself():
  run(
    'drop_rights()\n'
    'ids = (65534, 65534)\n'
    'namespace = network_namespace.make_namespace()\n'
    'assert len(namespace.fds) == 2\n'
    'run_inside(namespace, check_loopback)\n'
  )


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='needs the rights of root')
def test_root_keeps_its_rights_over_files(tmp_path):
  (tmp_path / 'secret').touch()
  os.chown(tmp_path / 'secret', 65534, 65534)
  (tmp_path / 'secret').chmod(0o600)
  run(
    'namespace = network_namespace.make_namespace()\n'
    f"run_inside(namespace, lambda: open('{tmp_path}/secret', 'a').close())\n"
  )


@pytest.mark.slow
def test_a_refusal_says_why():
  said = run(
    'import errno, types\n'
    'def refuse(*_):\n'
    '  ctypes.set_errno(number)\n'
    '  return -1\n'
    'network_namespace.ctypes = types.SimpleNamespace(\n'
    '  CDLL=lambda *_, **__: types.SimpleNamespace(unshare=refuse),\n'
    '  get_errno=ctypes.get_errno,\n'
    ')\n'
    'for number in errno.EPERM, errno.ENOSPC:\n'
    '  try:\n'
    '    network_namespace.make_namespace()\n'
    '  except OSError as error:\n'
    '    print(error)\n'
  )
  assert said.splitlines() == [
    f'cannot create a network namespace: unshare: {reason}'
    for reason in ('Operation not permitted', 'no more user namespaces')
  ]
