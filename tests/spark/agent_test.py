"""The agent of an executor, with the test as Spark and as the driver."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from distmnist.common import cli
from distmnist.spark import agent as agent_lib
from tests.support import link_ends
from tests.support.background import assert_gone, wait_until
from tests.support.paths import PYTHONPATH, REPO

# Far more than anything takes where nobody else wants the cores.
DEADLINE_SECS = 60
SECRET = 'secret'


class Agent:
  """An agent that runs support/fake_train.py, and what it has said."""

  def __init__(self, folder, do, *flags, job='worker', **spec):
    self.listener = socket.create_server(('127.0.0.1', 0))
    self.folder = folder
    (folder / 'own').mkdir()
    self.process = subprocess.Popen(
      [sys.executable, '-m', 'distmnist.spark.agent'],
      env={**os.environ, 'PYTHONPATH': PYTHONPATH},
      stdin=subprocess.PIPE,
      start_new_session=True,
    )
    flags = [*flags, f'--job_name={job}', '--task_index=0']
    flags += [f'--folder={folder}', f'--do={do}']
    task = {
      'job_name': job,
      'task_index': 0,
      'host': '127.0.0.1',
      'port': 2222,
      'argv': ['python', '-m', 'fake_train', *flags],
      'env': [['A', 'b']],
    }
    line = {
      'task': task,
      'name': f'{job} 0',
      'lock': None,
      'folder': str(folder / 'own'),
      'attempt': 1,
      'executor': '127.0.0.1',
      'executor_pid': os.getpid(),
      'driver': list(self.listener.getsockname()),
      'secret': SECRET,
      **spec,
    }
    self.process.stdin.write(json.dumps(line).encode() + b'\n')
    self.process.stdin.flush()
    self.messages = []

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.listener.close()
    if hasattr(self, 'link'):
      self.link.close()
    self.process.stdin.close()
    try:
      self.process.wait(DEADLINE_SECS)
    finally:
      self.process.kill()
      self.process.wait()

  def meet(self):
    """Lets it in, as the driver does; returns its hello.

    Whoever knows an earlier owner of the port may call first, and is sent away.
    """
    self.listener.settimeout(DEADLINE_SECS)
    while True:
      with contextlib.suppress(OSError):
        self.link = link_ends.End.of_driver(
          self.listener, SECRET, DEADLINE_SECS
        )
        return self.read('hello')

  def read(self, key):
    """Returns the next message with `key`; keeps the others."""
    deadline = time.monotonic() + DEADLINE_SECS
    while True:
      for message in self.messages:
        if key in message:
          self.messages.remove(message)
          return message
      assert time.monotonic() < deadline and self.link.is_open, self.messages
      self.messages += self.link.receive(1)

  def start_task(self, *touched):
    """Lets the task start; returns its process once it has touched files."""
    self.meet()
    self.link.send(go=True)
    return self.wait_for_task(*touched)

  def wait_for_task(self, *touched):
    """Waits for touched files; returns the task's psutil.Process."""
    paths = [self.folder / name for name in touched]
    wait_until(lambda: all(p.exists() for p in paths), lambda: f'no {touched}')
    return psutil.Process(int((self.folder / touched[0]).read_text()))


@pytest.mark.slow
def test_a_task_starts_when_told_and_its_lines_and_end_are_told(tmp_path):
  with Agent(tmp_path, 'worker0:count=2,env=DISTMNIST_ATTEMPT,env=A') as agent:
    assert agent.meet() == {
      'hello': 'worker 0',
      'attempt': 1,
      'address': '127.0.0.1:2222',
      'executor': f'127.0.0.1 (pid {os.getpid()})',
    }
    assert agent.link.receive(0.1) == []
    agent.link.send(go=True)
    assert agent.read('end') == {'end': 0, 'report': None}
    lines = sum((m['lines'] for m in agent.messages), [])
    assert lines == [
      *('worker0 line 0', 'worker0 line 1'),
      *('DISTMNIST_ATTEMPT=None', "A='b'"),
    ]
    agent.link.send(leave=True)
    assert agent.process.wait(DEADLINE_SECS) == 0
  assert not (tmp_path / 'own').exists()


@pytest.mark.parametrize(
  ('word', 'why'),
  [
    ('ours', None),
    ('theirs', 'it has another one in its place'),
    ('locked', 'another sweep has it'),
    ('none', 'No such file or directory'),
  ],
)
def test_a_trial_needs_the_lock_that_it_shares_with_the_driver(
  tmp_path, word, why
):
  path = tmp_path / 'lock'
  agent = agent_lib.Agent(
    {
      'task': {
        **{'job_name': 'worker', 'task_index': 0, 'host': 'a', 'port': None},
        **{'argv': [], 'env': []},
      },
      **{'folder': str(tmp_path), 'lock': [str(path), 'ours']},
      **{'executor': 'a', 'executor_pid': 7},
    },
    stdin=None,
  )
  if word != 'none':
    path.write_text('theirs' if word == 'theirs' else 'ours')
  with open(tmp_path / ('lock' if word != 'none' else 'other'), 'a') as other:
    how = fcntl.LOCK_EX if word == 'locked' else fcntl.LOCK_SH
    fcntl.flock(other, how)
    assert agent._find_obstacle() == (
      why and f'a (pid 7) does not share {path}: {why}'
    )
  if why:
    if word != 'none':
      agent._lock.close()
    return
  # Held as long as the agent is there.
  with open(path) as other:
    with pytest.raises(BlockingIOError):
      fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    agent._lock.close()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
@pytest.mark.parametrize('said', [b'', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'])
def test_a_stranger_on_the_port_of_the_driver_does_no_harm(tmp_path, said):
  with Agent(tmp_path, 'worker0:count=1') as agent:
    with socket.create_connection(agent.listener.getsockname()) as stranger:
      stranger.sendall(said)
    assert agent.meet()['hello'] == 'worker 0'


@pytest.mark.slow
def test_the_end_of_a_task_by_a_signal_is_told(tmp_path):
  do = 'ps0:env=DISTMNIST_ATTEMPT,env=A,write=cut,kill=11'
  with Agent(tmp_path, do, job='ps', attempt=2) as agent:
    agent.meet()
    agent.link.send(go=True)
    assert agent.read('end') == {'end': -11}
    lines = sum((m['lines'] for m in agent.messages), [])
    assert lines[:2] == ["DISTMNIST_ATTEMPT='2'", "A='b'"]


@pytest.mark.slow
def test_the_report_of_a_chief_comes_along(tmp_path):
  (tmp_path / 'report.json').write_text('{"test_accuracy": 0.5}')
  do, logdir = 'worker0:print=done', f'--logdir={tmp_path}'
  with Agent(tmp_path, do, logdir) as agent:
    agent.meet()
    agent.link.send(go=True)
    report = {'test_accuracy': 0.5}
    assert agent.read('end') == {'end': 0, 'report': report}


@pytest.mark.slow
def test_a_task_is_stopped_with_grace_then_at_once(tmp_path):
  with Agent(tmp_path, 'worker0:deaf,touch=deaf,forever') as agent:
    task = agent.start_task('worker0.deaf')
    agent.link.send(stop=signal.SIGTERM)
    assert agent.link.receive(0.3) == []
    agent.link.send(stop=signal.SIGTERM)
    assert agent.read('end') == {'end': -signal.SIGKILL}
    assert_gone([task])


def test_only_a_second_order_to_stop_ends_a_task_at_once():
  spec = {'task': {'argv': [], 'env': [], 'job_name': 'ps', 'task_index': 0}}
  spec['task'] |= {'host': 'a', 'port': 1}
  agent = agent_lib.Agent(spec, stdin=None)
  agent._signals.append(signal.SIGTERM)  # from a person
  agent._take({'stop': signal.SIGTERM})
  assert len(agent._signals) == 1
  agent._take({'stop': signal.SIGTERM})
  assert len(agent._signals) == 2


@pytest.mark.slow
def test_an_order_to_stop_that_comes_with_the_one_to_start_counts(tmp_path):
  with Agent(tmp_path, 'worker0:leave') as agent:
    agent.meet()
    agent.link.send(go=True)
    agent.link.send(stop=signal.SIGTERM)
    assert agent.read('end') == {'end': None}


@pytest.mark.slow
def test_a_task_that_is_stopped_and_could_not_save_says_so(tmp_path):
  with Agent(tmp_path, 'worker0:lose') as agent:
    agent.start_task('worker0.ready')
    agent.link.send(stop=signal.SIGTERM)
    assert agent.read('end') == {'end': cli.NOT_SAVED}


@pytest.mark.slow
def test_spark_may_end_its_process_and_the_driver_says_when_to_stop(tmp_path):
  with Agent(tmp_path, 'worker0:leave') as agent:
    task = agent.start_task('worker0.ready')
    agent.process.stdin.close()
    lost = agent.read('lost')['lost']
    assert lost.startswith('Spark has ended its Python process on 127.0.0.1')
    assert task.is_running()
    agent.link.send(stop=signal.SIGTERM)
    assert agent.read('end') == {'end': None}
    assert (tmp_path / 'worker0.left').exists()
    agent.link.send(leave=True)
    assert agent.process.wait(DEADLINE_SECS) == 0


@pytest.mark.slow
def test_a_dead_executor_is_told_from_a_python_process_that_was_ended(tmp_path):
  dead = subprocess.Popen(['true'])
  dead.wait()
  with Agent(tmp_path, 'worker0:leave', executor_pid=dead.pid) as agent:
    agent.start_task('worker0.ready')
    agent.process.stdin.close()
    assert agent.read('lost') == {
      'lost': f'its executor, 127.0.0.1 (pid {dead.pid}), has died'
    }


@pytest.mark.slow
def test_without_a_driver_the_task_is_stopped(tmp_path):
  with Agent(tmp_path, 'worker0:leave') as agent:
    task = agent.start_task('worker0.ready')
    agent.link.close()
    assert agent.process.wait(DEADLINE_SECS) == 0
    assert (tmp_path / 'worker0.left').exists()
    assert_gone([task])


@pytest.mark.slow
def test_an_agent_killed_by_9_takes_its_task_along(tmp_path):
  with Agent(tmp_path, 'worker0:leave') as agent:
    task = agent.start_task('worker0.ready')
    agent.process.kill()
    assert_gone([task])


@pytest.mark.slow
def test_an_agent_that_is_not_needed_any_more_starts_nothing(tmp_path):
  with Agent(tmp_path, 'worker0:touch=started') as agent:
    agent.meet()
    agent.process.stdin.close()
    assert agent.process.wait(DEADLINE_SECS) == 0
  assert not (tmp_path / 'worker0.started').exists()


@pytest.mark.slow
def test_no_driver_is_said_in_a_line(tmp_path):
  (tmp_path / 'own').mkdir()
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    host, port = closed.getsockname()
    spec = {
      'task': {
        **{'job_name': 'ps', 'task_index': 0, 'host': 'a', 'port': 1},
        **{'argv': [], 'env': []},
      },
      **{'folder': str(tmp_path / 'own'), 'attempt': 1, 'executor': 'a'},
      **{'name': 'ps 0', 'lock': None},
      **{'executor_pid': None, 'driver': [host, port], 'secret': SECRET},
    }
    done = subprocess.run(
      [sys.executable, '-m', 'distmnist.spark.agent'],
      input=json.dumps(spec) + '\n',
      capture_output=True,
      text=True,
      timeout=DEADLINE_SECS,
      cwd=REPO,
    )
  assert done.returncode == 3
  assert done.stderr.startswith(f'ps 0 cannot reach the driver at {host}:')
