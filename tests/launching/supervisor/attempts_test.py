"""attempts: what a host is asked for, and what comes of an end; no process."""

import errno

import pytest

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.supervisor import attempts as attempts_lib
from distmnist.launching.supervisor import restart_limits, task_host
from tests.support.fake_host import FakeHost


@pytest.fixture
def cluster():
  return jobs.make_tasks(['x:1'], ['x:2', 'x:3'], [])


@pytest.fixture
def make(tmp_path, cluster, monkeypatch):
  monkeypatch.setattr(restart_limits, 'FIRST_BACKOFF_SECS', 0)

  def make(ends, limits, on_start=lambda *facts: None):
    host = FakeHost(ends)
    attempts = attempts_lib.Attempts(host, str(tmp_path), limits, on_start)
    for task in cluster:
      attempts.start(task)
    return host, attempts

  return make


def test_after_a_signal_no_task_starts_again(make):
  host, attempts = make([[('worker 1', -9)]], restart_limits.Limits(1))
  host.signals.append(15)
  attempts.turn(0.0, is_told=False)
  assert attempts.records.waiting == []


def test_a_host_that_dies_while_all_end_has_no_task_left(make):
  death = task_host.HostDiedError('the host has died', 'killed by SIGKILL')
  host, attempts = make([death], restart_limits.NO_LIMITS)
  assert attempts.turn(0.0, is_told=True) == []
  assert attempts.running == []
  assert host.num_restarts == 0


def test_the_start_of_each_attempt_is_told_with_its_number(make):
  begun = []
  host, attempts = make(
    [], restart_limits.NO_LIMITS, lambda *facts: begun.append(facts)
  )
  host.begun += [('worker 0', 12), ('no task of ours', 13)]
  attempts.turn(0.0, is_told=False)
  attempts.turn(0.0, is_told=False)
  assert begun == [('worker 0', 12, 1)]


def test_a_task_whose_log_cannot_be_written_now_is_restarted_alone(
  make, monkeypatch
):
  host, attempts = make([[('worker 1', 3)]], restart_limits.Limits(3))
  num_started, fails = len(host.started), [True]
  real = attempts.logs.begin

  def begin(task, note=''):
    if fails:
      fails.pop()
      raise OSError(errno.EIO, 'Input/output error')
    return real(task, note)

  monkeypatch.setattr(attempts.logs, 'begin', begin)
  attempts.turn(0.0, is_told=False)
  attempts.start_due()
  assert len(host.started) == num_started
  record = attempts.records['worker 1']
  assert (record.code, record.is_running) == (71, False)
  assert record.failure.reason == (
    'not started, as its log cannot be written: Input/output error'
  )
  attempts.turn(0.0, is_told=False)
  attempts.start_due()
  assert host.started[num_started:] == [
    ('worker 1', {'DISTMNIST_ATTEMPT': '3'})
  ]
  assert attempts.policy.failure is None


@pytest.mark.parametrize('num_refusals', [1, 6])
def test_a_host_that_cannot_be_started_again_now_is_tried_again(
  make, logged, num_refusals
):
  death = task_host.HostDiedError('the host has died', 'killed by SIGKILL')
  host, attempts = make([death], restart_limits.Limits(1))
  refusals = [cli.PassingError('no fork server')] * num_refusals

  def restart():
    if refusals:
      raise refusals.pop()

  host.restart = restart
  attempts.turn(0.0, is_told=False)
  attempts.start_due()
  said = [line for line in logged if line.startswith('no fork server: ')]
  assert said[0] == 'no fork server: trying again in 0.5 s'
  assert len(said) == num_refusals
  assert len(host.started) == 6


def test_a_host_that_can_never_be_started_again_is_an_error(make):
  death = task_host.HostDiedError('the host has died', 'killed by SIGKILL')
  host, attempts = make([death], restart_limits.Limits(1))

  def restart():
    raise cli.PassingError('no fork server')

  host.restart = restart
  with pytest.raises(cli.PassingError, match='no fork server'):
    attempts.turn(0.0, is_told=False)
