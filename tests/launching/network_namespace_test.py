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
    timeout=60,
  )
  error = done.stderr.strip().splitlines()[-1:]
  if error and 'cannot create a network namespace' in error[0]:
    pytest.skip(error[0])
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_inside_there_is_loopback_alone_and_outside_all_is_as_before():
  run(
    'before = names()\n'
    'namespace = network_namespace.make_namespace()\n'
    'run_inside(namespace, check_loopback)\n'
    'assert names() == before\n'
  )


def test_two_namespaces_share_no_port():
  run(
    'first, second = [network_namespace.make_namespace() for _ in range(2)]\n'
    'def check():\n'
    '  server = socket.create_server(("127.0.0.1", 2222))\n'
    '  run_inside(second, check_loopback)\n'
    'run_inside(first, check)\n'
  )


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can drop its rights')
def test_a_user_without_rights_gets_one_and_stays_himself():
  run(
    'drop_rights()\n'
    'ids = (65534, 65534)\n'
    'namespace = network_namespace.make_namespace()\n'
    'assert len(namespace.fds) == 2\n'
    'run_inside(namespace, check_loopback)\n'
  )


@pytest.mark.skipif(os.geteuid() != 0, reason='needs the rights of root')
def test_root_keeps_its_rights_over_files(tmp_path):
  (tmp_path / 'secret').touch()
  os.chown(tmp_path / 'secret', 65534, 65534)
  (tmp_path / 'secret').chmod(0o600)
  run(
    'namespace = network_namespace.make_namespace()\n'
    f"run_inside(namespace, lambda: open('{tmp_path}/secret', 'a').close())\n"
  )


def test_no_other_program_inherits_it_and_it_can_be_closed():
  run(
    'namespace = network_namespace.make_namespace()\n'
    'fds = list(namespace.fds)\n'
    'assert not any(map(os.get_inheritable, fds))\n'
    'namespace.close()\n'
    'for fd in fds:\n'
    "  assert not os.path.exists(f'/proc/self/fd/{fd}')\n"
  )


@pytest.mark.parametrize(
  ('number', 'reason'),
  [
    ('EPERM', 'unshare: Operation not permitted'),
    ('ENOSPC', 'unshare: no more user namespaces'),
  ],
)
def test_a_refusal_says_why(number, reason):
  assert (
    run(
      'import errno, types\n'
      'def refuse(*_):\n'
      f'  ctypes.set_errno(errno.{number})\n'
      '  return -1\n'
      'network_namespace.ctypes = types.SimpleNamespace(\n'
      '  CDLL=lambda *_, **__: types.SimpleNamespace(unshare=refuse),\n'
      '  get_errno=ctypes.get_errno,\n'
      ')\n'
      'try:\n'
      '  network_namespace.make_namespace()\n'
      'except OSError as error:\n'
      '  print(error)\n'
    )
    == f'cannot create a network namespace: {reason}\n'
  )


def test_to_enter_what_is_no_namespace_is_an_error():
  run(
    'fd = os.open(os.devnull, os.O_RDONLY)\n'
    'namespace = network_namespace.Namespace([fd])\n'
    'try:\n'
    '  namespace.enter()\n'
    'except OSError as error:\n'
    "  assert error.filename == 'setns', error\n"
    'else:\n'
    '  raise AssertionError\n'
  )
