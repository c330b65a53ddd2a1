"""What a record says of its task, from the first start to the last end."""

import math
import signal

import pytest

from distmnist.launching import jobs
from distmnist.launching.supervisor import failures, restart_policy
from distmnist.launching.supervisor.task_record import TaskRecord, TaskRecords


@pytest.fixture
def records():
  return [
    TaskRecord(task, restart_policy.Budget(restart_policy.NO_LIMITS))
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


@pytest.mark.parametrize(
  'code, is_final, has_lost_steps',
  [(0, False, False), (2, True, False), (75, False, True), (-9, False, True)],
)
def test_a_code_says_what_may_come_next(
  records, code, is_final, has_lost_steps
):
  ps, _ = records
  ps.code = code
  assert (ps.is_final, ps.has_lost_steps) == (is_final, has_lost_steps)


@pytest.mark.parametrize(
  'code, has_lost_steps',
  [(0, False), (130, False), (143, False), (75, True)]
  + [(code, True) for code in (1, 3, -signal.SIGINT, -signal.SIGTERM)],
)
def test_one_started_again_has_lost_steps_unless_it_says_that_it_has_saved(
  records, code, has_lost_steps
):
  ps, _ = records
  ps.attempt, ps.code = 2, code
  assert ps.has_lost_steps == has_lost_steps
  ps.attempt = 1
  assert ps.has_lost_steps == (code == 75)


def test_what_waits_is_due_at_its_time_and_once_its_process_has_ended(records):
  all_records = TaskRecords({record.task.name: record for record in records})
  ps, _ = records
  assert all_records.compute_wait_secs(1.0) == math.inf
  ps.restart_at(5.0, 'restart 1 of 1')
  ps.is_running = True
  assert all_records.running == all_records.waiting == [ps]
  assert all_records.compute_wait_secs(1.0) == math.inf
  assert all_records.take_due(6.0) == []
  ps.is_running = False
  assert all_records.compute_wait_secs(1.0) == 4.0
  assert all_records.take_due(4.0) == []
  assert all_records.take_due(5.0) == [ps]
  all_records.cancel_restarts()
  assert all_records.waiting == []


def test_a_worker_is_left_unless_it_has_failed(records):
  all_records = TaskRecords({record.task.name: record for record in records})
  _, worker = records
  assert all_records.left_workers == []
  worker.code = 0
  assert all_records.left_workers == [worker]
  worker.code = 1
  assert all_records.left_workers == []
