"""The launcher's side; most tests speak in the server's place.

What becomes of real tasks is in fork_server_test.py and task_group_test.py.
"""

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types

import psutil
import pytest

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.forking import fork_client
from tests.support import background
from tests.support.paths import PYTHONPATH

WAITS_FOR_EVER = [sys.executable, '-c', 'import signal; signal.pause()']


class FakeServer:
  """In place of subprocess.Popen: a server that does what the test says."""

  def __init__(self, command, env, stdout, pass_fds, **_):
    self.command, self.env, self.pass_fds = command, env, pass_fds
    self.code = 0
    self.waits = []
    self.is_killed = False
    self._socket = socket.socket(fileno=os.dup(pass_fds[0]))
    self._socket.setblocking(False)
    self._log = os.dup(stdout.fileno())

  def say(self, **message):
    self._socket.send(json.dumps(message).encode())

  def hear(self):
    return json.loads(self._socket.recv(1 << 17))

  def log(self, text):
    os.write(self._log, text.encode())

  def end(self, code=0):
    self.code = code
    self._socket.close()

  def wait(self, timeout_secs=None):
    self.waits.append(timeout_secs)
    if timeout_secs is not None and self.code is None:
      raise subprocess.TimeoutExpired('server', timeout_secs)
    return self.code

  def kill(self):
    self.is_killed = True

  def close(self):
    self._socket.close()
    os.close(self._log)


@pytest.fixture
def servers(monkeypatch):
  """The servers that have been started, none of them a process."""
  started = []

  def start(*args, **kwargs):
    started.append(FakeServer(*args, **kwargs))
    return started[-1]

  monkeypatch.setattr(fork_client.subprocess, 'Popen', start)
  yield started
  for server in started:
    server.close()


@pytest.fixture
def log(tmp_path):
  return tmp_path / 'fork_server.log'


@pytest.fixture
def make_client(servers, log):
  def make(module='some.module', grace_secs=10.0, **settings):
    server = fork_client.ServerProcess(
      module, str(log), {'HOME': '/me'}, **settings
    )
    return fork_client.ForkServerClient(server, 'its tasks', grace_secs)

  return make


def test_the_server_is_told_its_socket_its_module_and_its_namespace(
  make_client, servers
):
  with make_client(kept_fds=[70, 71], namespace_fds=[80, 81]):
    (server,) = servers
  fd = server.pass_fds[0]
  assert server.pass_fds == [fd, 70, 71, 80, 81]
  assert server.command[:3] == [
    *(sys.executable, '-m', 'distmnist.launching.forking.fork_server'),
  ]
  # The last word is blank: room for the titles of the tasks.
  assert server.command[3:] == [str(fd), 'some.module', '80', '81', ' ' * 200]
  assert server.env == {'HOME': '/me', 'OPENBLAS_NUM_THREADS': '1'}


def test_new_processes_may_have_the_threads_of_numpy(make_client, servers):
  with make_client(module=''):
    assert servers[0].env == {'HOME': '/me'}
    assert servers[0].command[4] == ''


def test_a_task_is_asked_for_with_all_that_it_needs(
  make_client, servers, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with make_client(grace_secs=7.5) as client:
    client.start(
      host_lib.Request('ps 0', ['python'], {'A': 'b'}, 'ps.log', True, 'ps')
    )
    assert servers[0].hear() == {
      'start': 'ps 0',
      'argv': ['python'],
      'env': {'A': 'b'},
      'log': f'{tmp_path}/ps.log',
      'isolate': True,
      'title': 'ps',
      'grace_secs': 7.5,
    }


def test_a_command_that_is_too_long_is_one_line(make_client):
  with make_client() as client, pytest.raises(cli.RunError) as caught:
    client.start(host_lib.Request('ps 0', ['x' * (1 << 17)], {}, 'ps.log'))
  message = str(caught.value)
  assert message.startswith('the command of ps 0 is too long (13')
  assert message.endswith(
    ' bytes, more than 131072): name fewer or shorter hosts, and put long flags'
    ' of train into a --flagfile'
  )


def test_pids_are_known_from_the_start_to_the_end_of_a_task(
  make_client, servers
):
  with make_client() as client:
    assert not client.is_ready
    assert client.poll(0) == []
    assert not client.is_ready
    servers[0].say(ready=True)
    assert client.poll(0) == []
    assert client.is_ready
    servers[0].say(name='a', pid=11)
    servers[0].say(name='b', pid=12)
    assert client.poll(0) == []
    assert client.pids == {'a': 11, 'b': 12}
    servers[0].say(name='b', code=-9)
    servers[0].say(name='a', code=3)
    servers[0].say(name='c', pid=13)
    assert client.poll(0) == [('b', -9), ('a', 3)]
    assert client.pids == {'c': 13}
  assert client.begun == [('a', 11), ('b', 12), ('c', 13)]


def test_a_flood_of_messages_comes_in_turns_of_a_hundred(make_client, servers):
  with make_client() as client:
    for i in range(150):
      servers[0].say(name=f'{i}', code=i)
    assert client.poll(0) == [(f'{i}', i) for i in range(100)]
    assert client.poll(0) == [(f'{i}', i) for i in range(100, 150)]


def test_a_signal_to_the_launcher_ends_a_turn_and_is_collected(make_client):
  before = signal.getsignal(signal.SIGTERM)
  with make_client() as client:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert client.poll() == []  # Else it would wait for ever.
    assert client.signals == [signal.SIGTERM, signal.SIGINT]
    assert client.poll(0) == []
  assert signal.getsignal(signal.SIGTERM) == before


def test_an_import_that_fails_is_one_line(make_client, servers, log):
  with make_client() as client, pytest.raises(cli.RunError) as caught:
    servers[0].say(error='ZeroDivisionError: division by zero')
    client.poll(0)
  assert str(caught.value) == (
    'cannot import some.module: ZeroDivisionError: division by zero'
    f' (traceback in {log})'
  )


def test_the_death_of_the_server_comes_after_the_ends_and_once(
  make_client, servers, log
):
  with make_client() as client:
    servers[0].say(name='a', code=-9)
    servers[0].end(-signal.SIGKILL)
    assert client.poll(0) == [('a', -9)]
    with pytest.raises(fork_client.ServerDiedError) as caught:
      client.poll(0)
    assert client.poll(0) == []
  assert caught.value.cause == 'killed by SIGKILL'
  assert str(caught.value) == (
    'the fork server has died, and its tasks with it (killed by SIGKILL;'
    f' log: {log})'
  )
  assert isinstance(caught.value, cli.LostError)


def test_a_server_that_left_with_requests_unread_is_dead_too(
  make_client, servers
):
  with make_client() as client:
    client.signal(['a'], signal.SIGTERM)
    servers[0].end(3)
    client.poll(0)
    with pytest.raises(fork_client.ServerDiedError, match='exit code 3'):
      client.poll(0)


def test_a_new_server_starts_with_no_task(make_client, servers):
  with make_client() as client:
    servers[0].say(ready=True)
    servers[0].say(name='a', pid=1 << 30)  # No process has this pid.
    client.poll(0)
    servers[0].end(1)
    with pytest.raises(fork_client.ServerDiedError):
      client.poll(0)
    client.restart()
    assert len(servers) == 2
    assert servers[1].command[4:] == servers[0].command[4:]
    assert (client.is_ready, client.pids) == (False, {})
    servers[1].say(ready=True)
    client.poll(0)
    assert client.is_ready


def test_a_log_with_a_line_stays_and_is_added_to(make_client, servers, log):
  log.write_text('of an earlier run\n')
  with make_client():
    servers[0].log('Traceback\n')
  assert log.read_text() == 'of an earlier run\nTraceback\n'


def test_a_log_that_a_user_has_removed_is_not_missed(make_client, log):
  with make_client():
    log.unlink()


def test_the_server_gets_the_grace_of_its_tasks_and_2_s_to_leave(
  make_client, servers
):
  with make_client(grace_secs=7.5):
    pass
  assert servers[0].waits == [9.5]
  assert not servers[0].is_killed


@pytest.mark.slow
@pytest.mark.parametrize('is_restarted', [True, False])
def test_after_a_death_the_tasks_and_what_they_started_are_gone(
  tmp_path, log, is_restarted
):
  env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  command = ['python', '-m', 'fake_train', f'--folder={tmp_path}']
  command.append('--do=worker0:child,deaf,touch=ready,forever')
  with fork_client.make_host('fake_train', str(log.parent), env) as client:
    log = str(tmp_path / 'a.log')
    client.start(host_lib.Request('a', command, {}, log))
    while 'a' not in client.pids:
      client.poll(60)
    background.wait_until(
      (tmp_path / 'worker0.ready').exists, client.server.poll
    )
    task = os.pidfd_open(client.pids['a'])
    child = psutil.Process(int((tmp_path / 'worker0.child').read_text()))
    first = client.server.pid
    client.kill()
    with pytest.raises(fork_client.ServerDiedError, match='SIGKILL'):
      while True:
        client.poll(60)
    if is_restarted:
      client.restart()
      assert client.server.pid != first
  has_ended, _, _ = select.select([task], [], [], 0)
  os.close(task)
  assert has_ended == [task]
  background.assert_gone([child], timeout_secs=30)


def test_why_a_task_was_not_started_is_known_with_its_end(make_client, servers):
  with make_client() as client:
    servers[0].say(ready=True)
    servers[0].say(name='a', code=71, reason='no process')
    assert client.poll(0) == [('a', 71)]
    assert client.reasons == {'a': 'no process'}


def test_a_server_that_the_kernel_refuses_may_pass(make_client, monkeypatch):
  def refuse(*_, **__):
    raise OSError(errno.EAGAIN, 'Resource temporarily unavailable')

  monkeypatch.setattr(fork_client.subprocess, 'Popen', refuse)
  with pytest.raises(cli.PassingError, match='^the fork server cannot be '):
    make_client().__enter__()


@pytest.mark.slow
def test_it_leaves_with_its_launcher_and_takes_an_empty_log_along(tmp_path):
  log = tmp_path / 'server.log'
  server = fork_client.ServerProcess('', str(log), os.environ)
  server.start().close()
  assert log.exists()
  server.wait_for_end(30)
  assert server.process.returncode == 0
  assert not log.exists()


@pytest.mark.slow
def test_it_starts_though_the_folder_of_its_log_was_removed(tmp_path):
  log = tmp_path / 'gone' / 'server.log'
  server = fork_client.ServerProcess('', str(log), os.environ)
  server.start().close()
  server.wait_for_end(30)
  assert server.process.returncode == 0


@pytest.mark.slow
def test_an_empty_log_that_cannot_be_removed_is_no_error(tmp_path, monkeypatch):
  def refuse(path):
    raise PermissionError(13, 'Permission denied', path)

  log = tmp_path / 'server.log'
  server = fork_client.ServerProcess('', str(log), os.environ)
  server.start().close()
  monkeypatch.setattr(fork_client.os, 'remove', refuse)
  server.wait_for_end(30)
  assert server.process.returncode == 0
  assert log.exists()


@pytest.mark.slow
def test_it_hears_no_stop_from_its_very_start_and_we_do(tmp_path):
  log = tmp_path / 'server.log'
  before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
  server = fork_client.ServerProcess('', str(log), os.environ)
  with server.start():
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      server.process.send_signal(signum)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
  server.wait_for_end(30)
  assert server.process.returncode == 0


def test_one_that_does_not_leave_is_killed_and_its_log_stays(tmp_path):
  log = tmp_path / 'server.log'
  server = fork_client.ServerProcess('', str(log), os.environ)
  with server.start():
    log.write_text('a line\n')
    server.wait_for_end(0.01)
  assert server.process.returncode == -signal.SIGKILL
  assert log.read_text() == 'a line\n'


def test_the_end_of_a_process_is_waited_for_as_long_as_it_may_take():
  start = time.monotonic()
  with subprocess.Popen(WAITS_FOR_EVER) as running:
    fork_client.wait_for_end(running.pid, start + 0.2)
    assert time.monotonic() >= start + 0.2
    running.kill()
    fork_client.wait_for_end(running.pid, start + 60)
    assert running.wait(60) == -signal.SIGKILL
  assert time.monotonic() < start + 50


@pytest.fixture
def told(monkeypatch):
  """The arguments of each ServerProcess and ForkServerClient."""
  told = []
  for name in ('ServerProcess', 'ForkServerClient'):
    monkeypatch.setattr(fork_client, name, lambda *args: told.append(args))
  return told


def test_forks_of_one_process_have_its_module(told):
  fork_client.make_host('some.module', '/logs', {'A': 'b'}, stop_grace_secs=5)
  log = '/logs/fork_server.log'
  assert told == [
    ('some.module', log, {'A': 'b'}, (), ()),
    (None, 'its tasks', 7.0),
  ]


def test_new_processes_and_a_namespace(told):
  namespace = types.SimpleNamespace(fds=[70, 71])
  fork_client.make_host('some.module', '/logs', {}, False, namespace)
  module, *_, namespace_fds = told[0]
  assert (module, namespace_fds) == ('', namespace.fds)
