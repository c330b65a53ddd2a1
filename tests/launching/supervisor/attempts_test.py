"""attempts: what a host is asked for, and what comes of an end; no process."""

import pytest

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
  host, _ = make(
    [], restart_limits.NO_LIMITS, lambda *facts: begun.append(facts)
  )
  host.on_pid('worker 0', 12)
  host.on_pid('no task of ours', 13)
  assert begun == [('worker 0', 12, 1)]
