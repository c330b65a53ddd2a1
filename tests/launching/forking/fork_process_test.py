"""fork_process: a server that was told nothing leaves; the end of a process."""

import os
import signal
import subprocess
import sys
import time

from distmnist.launching.forking import fork_process

WAITS_FOR_EVER = [sys.executable, '-c', 'import signal; signal.pause()']


def test_it_leaves_with_its_launcher_and_takes_an_empty_log_along(tmp_path):
  log = tmp_path / 'server.log'
  server = fork_process.ServerProcess('', str(log), os.environ)
  server.start().close()
  assert log.exists()
  server.wait_for_end(30)
  assert server.process.returncode == 0
  assert not log.exists()


def test_it_starts_though_the_folder_of_its_log_was_removed(tmp_path):
  log = tmp_path / 'gone' / 'server.log'
  server = fork_process.ServerProcess('', str(log), os.environ)
  server.start().close()
  server.wait_for_end(30)
  assert server.process.returncode == 0


def test_an_empty_log_that_cannot_be_removed_is_no_error(tmp_path, monkeypatch):
  def refuse(path):
    raise PermissionError(13, 'Permission denied', path)

  log = tmp_path / 'server.log'
  server = fork_process.ServerProcess('', str(log), os.environ)
  server.start().close()
  monkeypatch.setattr(fork_process.os, 'remove', refuse)
  server.wait_for_end(30)
  assert server.process.returncode == 0
  assert log.exists()


def test_it_hears_no_stop_from_its_very_start_and_we_do(tmp_path):
  log = tmp_path / 'server.log'
  before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
  server = fork_process.ServerProcess('', str(log), os.environ)
  with server.start():
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      server.process.send_signal(signum)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
  server.wait_for_end(30)
  assert server.process.returncode == 0


def test_one_that_does_not_leave_is_killed_and_its_log_stays(tmp_path):
  log = tmp_path / 'server.log'
  server = fork_process.ServerProcess('', str(log), os.environ)
  with server.start():
    log.write_text('a line\n')
    server.wait_for_end(0.01)
  assert server.process.returncode == -signal.SIGKILL
  assert log.read_text() == 'a line\n'


def test_the_end_of_a_process_is_waited_for_as_long_as_it_may_take():
  start = time.monotonic()
  with subprocess.Popen(WAITS_FOR_EVER) as running:
    fork_process.wait_for_end(running.pid, start + 0.2)
    assert time.monotonic() >= start + 0.2
    running.kill()
    fork_process.wait_for_end(running.pid, start + 60)
    assert running.wait(10) == -signal.SIGKILL
  assert time.monotonic() < start + 50
