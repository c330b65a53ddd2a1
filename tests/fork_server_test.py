"""The protocol, spoken by a test in the launcher's place."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

TESTS = pathlib.Path(__file__).resolve().parent


# In the place of `-m distmnist.fork_server FD MODULE`: makes its own namespace,
# as a user who has no rights. What is imported first could not be read later.
AS_NOBODY = """
import ctypes, os, sys, numpy.random
from distmnist import fork_server, isolation
import fake_train
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1)  # as after an exec: /proc/self is one's own
try:
  namespace = isolation.make_namespace()
except OSError as error:
  print(error)
  sys.exit(1)
fork_server.main(int(sys.argv[1]), sys.argv[2], *namespace.fds)
"""


class Server:
  def __init__(self, module, log, program=('-m', 'distmnist.fork_server')):
    self.socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self.socket.settimeout(90)
    fd = theirs.fileno()
    command = [sys.executable, *program, str(fd)]
    path = f'{TESTS.parent}:{TESTS}:{log.parent}'
    with theirs, open(log, 'wb') as file:
      self.process = subprocess.Popen(
        [*command, module],
        stdout=file,
        stderr=file,
        env={**os.environ, 'PYTHONPATH': path},
        pass_fds=[fd],
        start_new_session=True,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.socket.close()
    try:
      self.process.wait(60)
    finally:
      self.process.kill()
      self.process.wait()

  def send(self, **message):
    self.socket.send(json.dumps(message).encode())

  def start(self, name, log, *flags, isolate=False, **env):
    argv = ['python', '-m', 'fake_train', *flags]
    self.send(start=name, argv=argv, env=env, log=str(log), isolate=isolate)

  def read(self):
    return json.loads(self.socket.recv(1 << 16))


@pytest.fixture
def server(tmp_path):
  with Server('fake_train', tmp_path / 'server.log') as server:
    assert server.read() == {'ready': True}
    yield server
  assert (tmp_path / 'server.log').read_text() == ''


@pytest.mark.parametrize(
  ('action', 'code'),
  [
    ('print=hello', 0),
    ('exit=3', 3),
    ('raise=boom', 1),
    ('kill=9', -9),
    ('kill=11', -11),
  ],
)
def test_a_task_is_announced_and_its_end_reported(
  server, tmp_path, action, code
):
  server.start('a', tmp_path / 'a.log', f'--do=worker0:{action}')
  started = server.read()
  assert started['name'] == 'a'
  assert started['pid'] > 0
  assert server.read() == {'name': 'a', 'code': code}


def test_a_task_gets_its_flags_its_variables_and_its_log(server, tmp_path):
  log = tmp_path / 'a.log'
  log.write_text('before\n')
  server.start('a', log, '--do=worker0:env=COLOUR,facts', COLOUR='red')
  server.read()
  assert server.read()['code'] == 0
  lines = log.read_text().splitlines()
  assert lines[:2] == ['before', "COLOUR='red'"]
  assert "argv ['fake_train', '--do=worker0:env=COLOUR,facts']" in lines


def test_variables_of_one_task_are_not_the_next_ones(server, tmp_path):
  for name, env in (('a', {'COLOUR': 'red'}), ('b', {})):
    server.start(name, tmp_path / name, '--do=worker0:env=COLOUR', **env)
    server.read()
    assert server.read()['code'] == 0
  assert (tmp_path / 'b').read_text() == 'COLOUR=None\n'


def test_a_signal_reaches_its_task_alone(server, tmp_path):
  for name in 'ab':
    server.start(name, tmp_path / name, '--do=worker0:forever')
    server.read()
  server.send(signal=signal.SIGTERM, name='a')
  assert server.read() == {'name': 'a', 'code': -signal.SIGTERM}
  server.send(signal=signal.SIGKILL, name='a')  # too late: of no effect
  server.send(signal=signal.SIGKILL, name='b')
  assert server.read() == {'name': 'b', 'code': -signal.SIGKILL}


def test_a_task_holds_no_descriptor_of_the_server(server, tmp_path):
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  process = psutil.Process(server.read()['pid'])
  server.start('b', tmp_path / 'b.log')  # by its end a has been set up, or
  server.read()  # will be within the deadline below
  server.read()
  deadline = time.monotonic() + 60
  while len(os.listdir(f'/proc/{process.pid}/fd')) != 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_the_end_of_the_launcher_is_the_end_of_the_tasks(server, tmp_path):
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  pid = server.read()['pid']
  server.socket.close()
  assert server.process.wait(60) == 0
  assert not psutil.pid_exists(pid)  # reaped, by its parent


@pytest.fixture
def nobodys_server(tmp_path):
  if os.geteuid():
    pytest.skip('only root can drop its rights')
  log = tmp_path / 'server.log'
  with Server('fake_train', log, ('-c', AS_NOBODY)) as server:
    if not (data := server.socket.recv(1 << 16)):
      pytest.skip(log.read_text())
    assert json.loads(data) == {'ready': True}
    yield server


def get_network(process):
  return os.readlink(f'/proc/{process.pid}/ns/net')


def start_and_wait(server, name, isolate):
  """Starts a task that waits, and returns it once it has been set up."""
  flag = '--do=worker0:forever'
  server.start(name, os.devnull, flag, isolate=isolate)
  process = psutil.Process(server.read()['pid'])
  deadline = time.monotonic() + 60
  while len(os.listdir(f'/proc/{process.pid}/fd')) != 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)
  return process


def test_only_who_asks_for_it_is_isolated(nobodys_server):
  tasks = [
    start_and_wait(nobodys_server, name, isolate)
    for name, isolate in (('a', True), ('b', False), ('c', True))
  ]
  networks = [get_network(task) for task in tasks]
  assert networks[0] == networks[2] != networks[1]
  assert networks[1] == get_network(psutil.Process())
  assert [task.uids().real for task in tasks] == [65534] * 3


@pytest.mark.slow
def test_an_isolated_task_goes_with_a_server_that_is_killed(nobodys_server):
  # To enter a user namespace is a change of rights: the kernel forgets who
  # asked before it to go with the parent.
  task = start_and_wait(nobodys_server, 'a', True)
  nobodys_server.process.kill()
  psutil.wait_procs([task], timeout=60)
  assert not task.is_running() or task.status() == psutil.STATUS_ZOMBIE


def test_an_isolated_task_gets_its_signals(nobodys_server):
  start_and_wait(nobodys_server, 'a', True)
  nobodys_server.send(signal=signal.SIGTERM, name='a')
  assert nobodys_server.read() == {'name': 'a', 'code': -signal.SIGTERM}


def test_a_broken_import_is_an_answer_with_its_reason(tmp_path):
  (tmp_path / 'broken.py').write_text('1 / 0')
  with Server('broken', tmp_path / 'log') as server:
    assert server.read() == {'error': 'ZeroDivisionError: division by zero'}
    assert server.process.wait(60) == 1
  assert 'Traceback' in (tmp_path / 'log').read_text()
