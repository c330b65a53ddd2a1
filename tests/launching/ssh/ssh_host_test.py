"""The side of the launcher, with a program in place of ssh.

The whole is in launchers/ssh_test.py and host_contract_test.py.
"""

import os
import time

import pytest

from distmnist.common import cli
from distmnist.launching import agent
from distmnist.launching import host as host_lib
from distmnist.launching.ssh import ssh_host


@pytest.fixture
def start(tmp_path, monkeypatch):
  """Returns start(script), which opens a host whose ssh is this script."""
  hosts = []

  def start(script, num_tasks=1, variables=None, hosts_of=('there',)):
    path = tmp_path / 'bin' / 'ssh'
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', f'{path.parent}:{os.environ["PATH"]}')
    places = {
      f'worker {i}': (f'me@{hosts_of[i % len(hosts_of)]}', None)
      for i in range(num_tasks)
    }
    host = ssh_host.SshHost(places, 'agent', [], 'python', 0.5)
    hosts.append(host.__enter__())
    for name in places:
      (tmp_path / name).touch()
      env, log = variables or {}, str(tmp_path / name)
      host.start(host_lib.Request(name, ['python'], env, log))
    return host

  yield start
  for host in hosts:
    host.__exit__(None, None, None)


def wait_for_end(host):
  deadline, ended = time.monotonic() + 60, []
  while not ended:
    assert time.monotonic() < deadline
    ended = host.poll(0.1)
  return ended


@pytest.mark.slow
def test_a_host_where_nothing_comes_to_run_is_given_up(start, monkeypatch):
  monkeypatch.setattr(ssh_host, 'READY_SECS', 0.5)
  host = start('exec sleep 60')
  # It may be fast later.
  assert wait_for_end(host) == [('worker 0', cli.LOST)]
  assert host.reasons == {
    'worker 0': 'ssh to me@there: nothing runs there after 0.5 s'
  }
  assert host.poll(0) == []


class NothingToWrite:
  """The module os where nothing is left to write, and nobody tries."""

  def __getattr__(self, name):
    assert name != 'write'
    return getattr(os, name)


@pytest.mark.slow
def test_a_request_that_fills_the_pipe_arrives_once(
  start, tmp_path, monkeypatch
):
  # It is written in parts, as a pipe takes 64 KiB.
  large = {'A': 'a word ' * 30_000}
  host = start(f'cat >{tmp_path}/got', variables=large)
  deadline = time.monotonic() + 60
  while not (got := tmp_path / 'got').exists() or b'\n' not in got.read_bytes():
    assert time.monotonic() < deadline
    assert host.poll(0.05) == []
  with monkeypatch.context() as patch:
    patch.setattr(ssh_host, 'os', NothingToWrite())
    for _ in range(4):
      assert host.poll(0.02) == []
  lines = [line for line in got.read_text().split('\n') if line]
  assert len(lines) == 1  # Besides the beats.
  assert large['A'] in lines[0]


@pytest.mark.slow
def test_what_a_shell_says_without_an_end_hides_no_agent(start):
  host = start(f"printf 'hello %s\\n' '{agent.READY}' >&2; exit 7")
  assert wait_for_end(host) == [('worker 0', 7)]
  assert host.begun == [('worker 0', None)]


@pytest.mark.slow
def test_an_ssh_that_is_killed_is_named_so_whatever_it_has_said(start):
  host = start('echo added a key >&2; kill -9 $$')
  assert wait_for_end(host) == [('worker 0', cli.FAILED)]
  assert host.reasons['worker 0'] == 'ssh to me@there: killed by SIGKILL'


@pytest.mark.slow
def test_all_hosts_that_cannot_be_reached_are_named_with_the_first(
  start, tmp_path
):
  # The second one answers only once the first has.
  host = start(
    f'case "$*" in *no-a*) touch {tmp_path}/asked;; *no-b*) while ! [ -e'
    f' {tmp_path}/asked ]; do sleep 0.01; done;;'
    f" *) printf '{agent.READY}\\n' >&2; exec sleep 60;; esac\n"
    'echo unknown >&2; exit 255',
    num_tasks=4,
    hosts_of=('here', 'no-a', 'no-b'),
  )
  assert wait_for_end(host) == [
    ('worker 1', cli.FAILED),
    ('worker 2', cli.FAILED),
  ]
  assert host.reasons['worker 1'].startswith('ssh to me@no-a: unknown; ')
  assert host.reasons['worker 1'].endswith(' no-b')


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_waits_for_no_other_for_long(
  start, monkeypatch
):
  monkeypatch.setattr(ssh_host, '_OTHERS_SECS', 0.2)
  script = 'case "$*" in *slow*) exec sleep 60;; *) exit 255;; esac'
  host = start(script, num_tasks=2, hosts_of=('slow', 'none'))
  assert wait_for_end(host) == [('worker 1', cli.FAILED)]


@pytest.mark.slow
def test_some_connect_at_a_time_and_all_may_be_told_to_leave(start, tmp_path):
  host = start(f'echo >>{tmp_path}/count; exec sleep 60', num_tasks=9)
  count = tmp_path / 'count'
  deadline = time.monotonic() + 60
  while not count.exists() or len(count.read_text()) < ssh_host.NUM_AT_ONCE:
    assert time.monotonic() < deadline
    assert host.poll(0.1) == []
  host.signal([f'worker {i}' for i in range(9)], 15)
  ended = []
  while len(ended) < 9:
    assert time.monotonic() < deadline
    ended += host.poll(0.1)
  assert sorted(ended) == [(f'worker {i}', -15) for i in range(9)]
  assert len(count.read_text()) == ssh_host.NUM_AT_ONCE


def test_the_options_of_the_user_come_first_as_ssh_takes_the_first():
  words = ssh_host.ssh_command('me@host', 'true', ['-o', 'BatchMode=no'])
  assert words[:4] == ['ssh', '-T', '-o', 'BatchMode=no']
  assert words[-3:] == ['--', 'me@host', 'true']
