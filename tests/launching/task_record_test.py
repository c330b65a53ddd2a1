"""What a record says of its task, from the first start to the last end."""

import pytest

from distmnist.launching import failures, jobs, restart_limits
from distmnist.launching.task_record import TaskRecord


@pytest.fixture
def records():
  return [
    TaskRecord(task, restart_limits.NO_LIMITS)
    for task in jobs.make_tasks(['x:1'], ['x:2'], [])
  ]


def test_a_worker_is_told_from_a_ps(records):
  assert [record.is_worker for record in records] == [False, True]


def test_a_task_is_left_while_it_runs_or_waits_to_start_again(records):
  ps, _ = records
  assert not ps.is_left
  ps.is_running = True
  assert ps.is_left
  ps.is_running, ps.code = False, -9
  assert not ps.is_left
  ps.restart_at(7.0, 'restart 1 of 1')
  assert ps.is_left
  assert (ps.restart_time, ps.note) == (7.0, 'restart 1 of 1')


def test_only_an_end_with_0_that_is_final_is_done(records):
  ps, worker = records
  assert not ps.is_done
  ps.code = worker.code = 0
  assert ps.is_done
  worker.restart_at(1.0, 'started again with worker 0')
  assert not worker.is_done


def test_a_failure_counts_the_restarts_before_it(records):
  ps, _ = records
  ps.code = -9
  assert ps.failure == failures.Failure(ps.task, -9, num_restarts=0)
