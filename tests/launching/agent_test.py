"""The end on the host, with pipes in place of ssh; and what ends it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from distmnist.launching import agent
from tests.support.background import assert_gone, wait_until
from tests.support.paths import PYTHONPATH

# Far more than anything takes where nobody else wants the cores.
DEADLINE_SECS = 120


class Host:
  """The end on the host, with the launcher's ends of its pipes."""

  def __init__(self, do, folder, port=None, grace_secs=9.0, **constants):
    self.folder = folder
    flags = [f'--do={do}', f'--folder={folder}']
    request = {
      'argv': ['python', '-m', 'fake_train', *flags],
      'env': {'COLOUR': 'red'},
      'port': port,
      'grace_secs': grace_secs,
    }
    sets = [f'agent.{name} = {value}' for name, value in constants.items()]
    code = '; '.join(
      ['import sys', 'from distmnist.launching import agent', *sets]
      + ['sys.exit(agent.serve())']
    )
    self.process = subprocess.Popen(
      [sys.executable, '-c', code],
      env={**os.environ, 'PYTHONPATH': PYTHONPATH},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )
    self.send(json.dumps(request))
    assert (
      self.process.stderr.readline() == b'distmnist.launching.agent: ready\n'
    )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.process.kill()
    self.process.wait()
    for pipe in ('stdin', 'stdout', 'stderr'):
      getattr(self.process, pipe).close()

  def send(self, line):
    self.process.stdin.write(line.encode() + b'\n')
    self.process.stdin.flush()

  def wait_for(self, name):
    """Returns the task (psutil.Process) that has touched `name`.

    Until then the host hears that we are alive.
    """
    deadline = time.monotonic() + DEADLINE_SECS
    while not (self.folder / name).exists():
      assert time.monotonic() < deadline, f'no {name}'
      self.send('')
      time.sleep(0.01)
    return psutil.Process(int((self.folder / name).read_text()))


@pytest.mark.slow
def test_the_output_and_the_exit_code_come_back(tmp_path):
  with Host('worker0:env=COLOUR,count=2,exit=3', tmp_path) as host:
    out = host.process.stdout.read().decode()
    assert host.process.wait(DEADLINE_SECS) == 3
  assert out == "COLOUR='red'\nworker0 line 0\nworker0 line 1\n"


@pytest.mark.slow
def test_a_signal_is_told_by_its_number(tmp_path):
  with Host('worker0:leave', tmp_path) as host:
    host.wait_for('worker0.ready')
    host.send(str(signal.SIGINT.value))
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGINT
    assert host.process.stdout.read() == b'leaving on 2\n'


@pytest.mark.slow
def test_death_by_a_signal_is_told_as_by_a_shell(tmp_path):
  with Host('worker0:kill=11', tmp_path) as host:
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGSEGV


@pytest.mark.slow
def test_a_signal_after_the_end_of_the_task_changes_nothing(tmp_path):
  with Host('worker0:touch=on,stray=3', tmp_path) as host:
    task = host.wait_for('worker0.on')
    wait_until(lambda: not psutil.pid_exists(task.pid), lambda: 'it runs')
    host.send(str(signal.SIGINT.value))  # Its output is still open.
    assert host.process.wait(DEADLINE_SECS) == 0


@pytest.mark.slow
def test_the_end_of_stdin_ends_the_task_though_nobody_reads_it(tmp_path):
  with Host('worker0:leave', tmp_path) as host:
    host.wait_for('worker0.ready')
    host.process.stdout.close()
    host.process.stdin.close()
    # It could print that it leaves, and leave.
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGTERM
    assert (tmp_path / 'worker0.left').exists()
    host.process.stdin = host.process.stdout = open(os.devnull)  # noqa: SIM115


@pytest.mark.slow
def test_a_launcher_that_is_silent_is_lost(tmp_path):
  with Host('worker0:leave', tmp_path, LOST_SECS=2) as host:
    host.wait_for('worker0.ready')
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGTERM
    assert (tmp_path / 'worker0.left').exists()


@pytest.mark.slow
def test_a_launcher_that_says_that_it_lives_is_not_lost(tmp_path):
  # Nobody may keep us from the processor for so long.
  with Host('worker0:leave', tmp_path, LOST_SECS=3) as host:
    host.wait_for('worker0.ready')
    for _ in range(40):
      with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(0.1)
      host.send('')


@pytest.mark.slow
def test_who_does_not_leave_is_killed(tmp_path):
  do = 'worker0:deaf,touch=deaf,forever'
  with Host(do, tmp_path, grace_secs=0.2) as host:
    task = host.wait_for('worker0.deaf')
    host.process.stdin.close()
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGKILL
    assert not task.is_running()
    host.process.stdin = open(os.devnull)  # noqa: SIM115


@pytest.mark.slow
def test_a_task_ends_with_who_looks_after_it(tmp_path):
  with Host('worker0:leave', tmp_path) as host:
    task = host.wait_for('worker0.ready')
    host.process.kill()
    assert_gone([task])


@pytest.mark.slow
def test_a_task_waits_until_its_port_is_free_and_says_so(tmp_path):
  with socket.create_server(('', 0)) as earlier:
    port = earlier.getsockname()[1]
    with Host('worker0:touch=on', tmp_path, port) as host:
      assert host.process.stdout.readline() == (
        f'waiting for port {port} here, which another process has\n'.encode()
      )
      with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(0.3)
      assert not (tmp_path / 'worker0.on').exists()
      earlier.close()
      assert host.process.wait(DEADLINE_SECS) == 0
      assert (tmp_path / 'worker0.on').exists()


@pytest.mark.slow
def test_a_port_that_is_never_free_is_left_to_the_task_to_name(tmp_path):
  with socket.create_server(('', 0)) as other:
    port = other.getsockname()[1]
    less = -agent.LOST_SECS
    with Host('worker0:exit=1', tmp_path, port, 0, LEAVE_SECS=less) as host:
      assert host.process.wait(DEADLINE_SECS) == 1


@pytest.mark.slow
def test_who_is_told_to_leave_before_the_start_does_not_start(tmp_path):
  with socket.create_server(('', 0)) as earlier:
    port = earlier.getsockname()[1]
    with Host('worker0:touch=on', tmp_path, port) as host:
      host.send(str(signal.SIGTERM.value))
      assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGTERM
  assert not (tmp_path / 'worker0.on').exists()


@pytest.mark.slow
def test_output_that_nobody_reads_holds_up_neither_signal_nor_end(tmp_path):
  with Host('worker0:count=200000,leave', tmp_path) as host:
    # Both pipes and our buffer are full by now, or will be.
    with pytest.raises(subprocess.TimeoutExpired):
      host.process.wait(0.5)
    host.process.stdin.close()
    assert host.process.wait(DEADLINE_SECS) == 128 + signal.SIGTERM
    host.process.stdin = open(os.devnull)  # noqa: SIM115
