"""The protocol, spoken by a test in the launcher's place."""

import os
import signal
import time

import psutil
import pytest

from distmnist.launching.forking import fork_server
from tests.support.forked import Server, start_and_wait

# A fork server to which the kernel refuses the second process.
REFUSED = """
import errno, os, sys
from distmnist.launching.forking import fork_server
real, asked = os.fork, []
def fork():
  asked.append(True)
  if len(asked) == 2:
    raise OSError(errno.EAGAIN, 'Resource temporarily unavailable')
  return real()
os.fork = fork
fork_server.main(int(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_a_task_is_announced_and_its_end_reported(server, tmp_path):
  for action, code in (
    *(('print=hello', 0), ('exit=3', 3), ('raise=boom', 1)),
    *(('kill=9', -9), ('kill=11', -11)),
  ):
    server.start(action, tmp_path / 'log', f'--do=worker0:{action}')
    started = server.read()
    assert started['name'] == action
    assert started['pid'] > 0
    assert server.read() == {'name': action, 'code': code}


@pytest.mark.slow
def test_a_signal_reaches_its_task_alone(server, tmp_path):
  for name in 'ab':
    server.start(name, tmp_path / name, '--do=worker0:forever')
    server.read()
  server.send(signal=signal.SIGTERM, name='a')
  assert server.read() == {'name': 'a', 'code': -signal.SIGTERM}
  server.start('c', tmp_path / 'c', '--do=worker0:forever')
  server.read()
  server.send(signal=signal.SIGINT, name='c')
  assert server.read() == {'name': 'c', 'code': -signal.SIGINT}
  assert (tmp_path / 'c').read_text() == ''
  server.send(signal=signal.SIGKILL, name='a')  # too late: of no effect
  server.send(signal=signal.SIGKILL, name='b')
  assert server.read() == {'name': 'b', 'code': -signal.SIGKILL}


@pytest.mark.slow
def test_the_end_of_the_launcher_is_the_end_of_the_tasks(server, tmp_path):
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  pid = server.read()['pid']
  server.socket.close()
  assert server.process.wait(60) == 0
  assert not psutil.pid_exists(pid)  # reaped, by its parent


@pytest.mark.parametrize('signum', fork_server.UNHEARD)
@pytest.mark.slow
def test_a_stop_that_reaches_it_too_leaves_its_tasks_be(
  server, tmp_path, signum
):
  if signal.getsignal(signum) == signal.SIG_IGN:
    pytest.skip(f'{signum!r} is ignored where these tests run, as by nohup')
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  server.read()
  server.process.send_signal(signum)
  server.start('b', tmp_path / 'b.log', '--do=worker0:forever')
  assert server.read()['name'] == 'b'
  for name in 'ab':  # They hear what it does not.
    server.send(signal=signum, name=name)
  ended = sorted(
    [server.read() for _ in 'ab'], key=lambda message: message['name']
  )
  assert [(one['name'], one['code']) for one in ended] == [
    ('a', -signum),
    ('b', -signum),
  ]


@pytest.mark.slow
def test_an_isolated_task_gets_its_signals_and_goes_with_a_killed_server(
  nobodys_server,
):
  start_and_wait(nobodys_server, 'a', True)
  nobodys_server.send(signal=signal.SIGTERM, name='a')
  assert nobodys_server.read() == {'name': 'a', 'code': -signal.SIGTERM}
  # Entering a user namespace changes rights: the kernel then forgets an earlier
  # request to go with the parent.
  task = start_and_wait(nobodys_server, 'b', True)
  nobodys_server.process.kill()
  psutil.wait_procs([task], timeout=200)
  assert not task.is_running() or task.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_broken_import_is_an_answer_with_its_reason(tmp_path):
  (tmp_path / 'broken.py').write_text('1 / 0')
  with Server('broken', tmp_path / 'log') as server:
    assert server.read() == {'error': 'ZeroDivisionError: division by zero'}
    assert server.process.wait(60) == 1
  assert 'Traceback' in (tmp_path / 'log').read_text()


@pytest.mark.slow
def test_a_broken_syntax_is_an_answer_with_its_line(tmp_path):
  path = tmp_path / 'broken.py'
  path.write_text('x = 1\nx = = 2\n')
  with Server('broken', tmp_path / 'log') as server:
    assert server.read()['error'].endswith(f'({path}:2)')


@pytest.mark.slow
def test_a_process_that_the_kernel_refuses_costs_no_other_task(tmp_path):
  log = tmp_path / 'server.log'
  with Server('fake_train', log, ('-c', REFUSED)) as server:
    assert server.read() == {'ready': True}
    server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
    server.read()
    server.start('b', tmp_path / 'b.log', '--do=worker0:exit=0')
    refused = server.read()
    reason = refused.pop('reason')
    assert refused == {'name': 'b', 'code': 71}
    assert 'refuses a new process (Resource temporarily unavailable)' in reason
    server.start('b', tmp_path / 'b.log', '--do=worker0:exit=0')
    server.read()
    assert server.read() == {'name': 'b', 'code': 0}
    server.send(signal=signal.SIGTERM, name='a')
    assert server.read() == {'name': 'a', 'code': -signal.SIGTERM}


@pytest.mark.slow
def test_a_task_without_a_log_may_start_again(tmp_path):
  with Server('fake_train', tmp_path / 'server.log') as server:
    server.read()
    server.start('a', tmp_path / 'none' / 'a.log')
    server.read()
    assert server.read() == {'name': 'a', 'code': 71}


def get_network(process):
  return os.readlink(f'/proc/{process.pid}/ns/net')


@pytest.mark.slow
def test_a_task_gets_its_own_flags_variables_and_log(server, tmp_path):
  (tmp_path / 'a').write_text('before\n')
  do = '--do=worker0:env=COLOUR,facts'
  for name, env in (('a', {'COLOUR': 'red'}), ('b', {})):
    server.start(name, tmp_path / name, do, **env)
    server.read()
    assert server.read()['code'] == 0
  lines = (tmp_path / 'a').read_text().splitlines()
  assert lines[:2] == ['before', "COLOUR='red'"]
  assert f"argv ['fake_train', '{do}']" in lines
  assert (tmp_path / 'b').read_text().startswith('COLOUR=None\n')


@pytest.mark.slow
def test_a_task_holds_no_descriptor_of_the_server(server, tmp_path):
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  process = psutil.Process(server.read()['pid'])
  server.start('b', tmp_path / 'b.log')  # once it has ended, a is set up, or
  server.read()  # will be within the deadline below
  server.read()
  deadline = time.monotonic() + 60
  while len(os.listdir(f'/proc/{process.pid}/fd')) != 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.mark.slow
def test_only_who_asks_for_it_is_isolated(nobodys_server):
  tasks = [
    start_and_wait(nobodys_server, name, isolate)
    for name, isolate in (('a', True), ('b', False), ('c', True))
  ]
  networks = [get_network(task) for task in tasks]
  assert networks[0] == networks[2] != networks[1]
  assert networks[1] == get_network(psutil.Process())
  assert [task.uids().real for task in tasks] == [65534] * 3
