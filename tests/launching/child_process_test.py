"""Both run in a real child, as the kernel does the work."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from distmnist.launching import child_process


def start(program, **settings):
  return subprocess.Popen(
    [sys.executable, '-c', program], stdout=subprocess.PIPE, **settings
  )


@pytest.mark.slow
def test_the_group_of_a_child_is_killed_before_the_child_is_reaped():
  program = (
    'import subprocess, sys;'
    ' print(subprocess.Popen(["sleep", "60"]).pid, flush=True);'
    ' sys.stdin.read()'
  )
  with start(program, stdin=subprocess.PIPE, start_new_session=True) as child:
    grandchild = psutil.Process(int(child.stdout.readline()))
    assert not child_process.has_ended(child.pid)
    assert grandchild.is_running()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child_process.has_ended(child.pid)
    psutil.wait_procs([grandchild], timeout=60)
    assert (
      not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    )
    assert child.wait() == 0  # It was left to be reaped.


@pytest.mark.slow
def test_a_child_dies_with_its_parent():
  program = (
    'import subprocess;'
    ' from distmnist.launching import child_process;'
    ' print(subprocess.Popen(["sleep", "60"],'
    ' preexec_fn=child_process.die_with_parent).pid, flush=True)'
  )
  with start(program) as parent:
    pid = int(parent.stdout.readline())
  assert parent.returncode == 0
  if psutil.pid_exists(pid):
    psutil.Process(pid).wait(timeout=60)


@pytest.mark.slow
def test_a_task_that_was_told_is_not_told_again_as_it_leaves():
  program = (
    'import signal, sys, time; told = [];'
    ' signal.signal(signal.SIGTERM, lambda *_: told.append(1));'
    ' print("ready", flush=True);'
    ' [time.sleep(0.01) for _ in iter(lambda: bool(told), True)];'
    ' print("told", flush=True); time.sleep(0.3); sys.exit(len(told))'
  )
  task = child_process.Task(['-c', program], {}, subprocess.PIPE, 60.0)
  with task.stdout:
    assert task.stdout.readline() == b'ready\n'
    task.tell(signal.SIGTERM)
    assert task.stdout.readline() == b'told\n'
    assert task.kill_time is None
    task.leave()
    assert task.kill_time is not None
    assert task.stdout.read() == b''
  while (code := task.find_code()) is None:
    pass
  assert code == 1
