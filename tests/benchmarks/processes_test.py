"""lib/processes.py: what is started ends, and what logs say is read."""

import os
import signal
import sys

import pytest

from tests.support.runner import import_benchmark

processes = import_benchmark('lib.processes')
WAIT = 'import threading; print("here", flush=True); threading.Event().wait()'


@pytest.fixture
def make(tmp_path):
  """Returns make(name, source, ...) -> a Process that runs this source."""

  def make_process(name, source, **more):
    argv = [sys.executable, '-c', source]
    return processes.Process(name, argv, tmp_path / name, **more)

  return make_process


@pytest.mark.slow
def test_a_failure_ends_the_others_and_tells_its_last_lines(make):
  other = make('other', WAIT)
  bad = make('bad', 'print("out of paint"); raise SystemExit(3)')
  with pytest.raises(processes.ProcessError) as raised:
    processes.Group().run([other, bad])
  assert str(raised.value) == 'bad ended with 3:\nout of paint'
  assert other.code == -signal.SIGKILL
  assert not os.path.exists(f'/proc/{other.pid}')


def test_a_signal_ends_what_runs_and_gives_the_exit_code(make):
  process = make('process', WAIT, has_tasks=True)
  log = processes.Log(process.log)

  def signal_us():
    log.read()
    if log.texts == ['here']:
      os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(SystemExit) as raised:
    processes.exit_by(processes.Group().run, [process], 60, signal_us)
  processes._received.clear()
  assert raised.value.code == 128 + signal.SIGTERM
  assert process.code == -signal.SIGTERM


def test_only_whole_lines_of_a_log_are_taken_in(tmp_path):
  times = iter([1.0, 2.0])
  log = processes.Log(tmp_path / 'log', clock=lambda: next(times))
  log.read()
  (tmp_path / 'log').write_bytes(b'here\nstep 1/2\nstep')
  log.read()
  with open(tmp_path / 'log', 'ab') as file:
    file.write(b' 2/2\n')
  log.read()
  assert log.lines == [(1.0, 'here'), (1.0, 'step 1/2'), (2.0, 'step 2/2')]
  assert log.step_times == [1.0, 2.0]


def test_a_log_goes_on_with_the_file_of_the_next_launch(tmp_path):
  path = tmp_path / 'worker_0.log'
  log = processes.Log(path)
  path.write_text('one\ntwo\n')
  log.read()
  path.rename(tmp_path / 'worker_0.log.1')
  path.write_text('three\n')
  log.read()
  assert log.texts == ['one', 'two', 'three']
