"""The policy alone, with a clock made of numbers."""

import pytest

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.launching.supervisor import (
  failures,
  restart_policy,
)

KILLED = -9


class Run:
  """A policy, and tasks that all run."""

  def __init__(self, num_ps, num_workers, *limits, **more):
    hosts = [f'x:{1 + i}' for i in range(num_ps + num_workers)]
    self.policy = restart_policy.RestartPolicy(
      restart_policy.Limits(*limits, **more)
    )
    self.killed = []
    for task in jobs.make_tasks(hosts[:num_ps], hosts[num_ps:], []):
      self.policy.note_start(self.policy.add(task), 0.0)

  def __getitem__(self, name):
    return self.policy.records[name]

  def end(self, name, code, now=0.0, **more):
    to_kill = self.policy.note_end(self[name], code, now, **more)
    self.killed += [task.name for task in to_kill]

  def restart_due(self, now):
    due = self.policy.records.take_due(now)
    for record in due:
      self.policy.note_start(record, now)
    return [record.task.name for record in due]


def test_without_restarts_the_first_failure_counts(caplog):
  run = Run(1, 2)
  run.end('worker 1', 3)
  run.end('worker 0', 70)
  assert run.policy.failure == failures.Failure(run['worker 1'].task, 3)
  assert caplog.messages == []


def test_the_time_to_a_restart_grows_with_each_failure(caplog):
  run, now = Run(1, 1, 3), 0.0
  expected = 0.1, 0.2, 0.4
  for secs in expected:
    run.end('worker 0', KILLED, now)
    assert run.policy.records.compute_wait_secs(now) == pytest.approx(secs)
    assert run.restart_due(now + secs / 2) == []
    now += secs
    assert run.restart_due(now) == ['worker 0']
  run.end('worker 0', KILLED, now)
  assert run.policy.failure == failures.Failure(
    run['worker 0'].task, KILLED, num_restarts=3
  )
  assert caplog.messages == [
    f'worker 0 (x:2) killed by SIGKILL: restart {i} of 3 in {secs} s'
    for i, secs in enumerate(expected, 1)
  ]


@pytest.mark.parametrize('code', [1, 2])
def test_what_would_fail_again_is_not_tried_again(code):
  run = Run(1, 2, 5, min_workers=1)
  run.end('worker 1', code)
  assert run.policy.failure.code == code


def test_who_was_told_to_end_has_not_failed():
  run = Run(1, 1, 5)
  run.end('worker 0', 143, is_told=True)
  run.end('ps 0', KILLED, may_restart=False)
  assert not run.policy.failure
  assert run.policy.records.waiting == []


def test_without_a_ps_too_a_worker_starts_again_alone():
  run = Run(0, 3, 1)
  run.end('worker 1', 3)
  run.end('worker 0', KILLED)
  assert run.killed == []
  assert run.restart_due(1.0) == ['worker 0', 'worker 1']
  assert [r.attempt for r in run.policy.records.values()] == [2, 2, 1]
  assert not run.policy.failure


def test_with_the_chief_start_again_those_who_have_ended(caplog):
  run = Run(1, 2, 1)
  run.end('worker 1', 0)
  run.end('worker 0', KILLED)
  assert run.restart_due(1.0) == ['worker 0', 'worker 1']
  assert caplog.messages[-1] == 'worker 1 is started again with worker 0'


def test_after_the_chief_nobody_is_started_again(caplog):
  run = Run(1, 3, 1)
  run.end('worker 1', KILLED)
  run.end('worker 0', 0)
  run.end('worker 2', KILLED)
  assert not run.policy.failure
  assert run.restart_due(100.0) == []
  assert caplog.messages[1:] == [
    'worker 1 is not restarted: the training is complete',
    'worker 2 (x:4) killed by SIGKILL: not restarted, as the training is '
    'complete',
  ]


def test_the_run_goes_on_with_as_few_workers_as_it_may(caplog):
  run = Run(1, 4, min_workers=2)
  run.end('worker 3', KILLED)
  run.end('worker 1', 3)
  assert not run.policy.failure
  assert caplog.messages == [
    'worker 3 (x:5) killed by SIGKILL: the run goes on without it, with 3 '
    'workers (--min_workers=2)',
    'worker 1 (x:3) ended with exit code 3: the run goes on without it, with 2 '
    'workers (--min_workers=2)',
  ]
  run.end('worker 2', KILLED)
  assert run.policy.failure.task.name == 'worker 2'


def test_a_worker_is_let_go_only_after_its_restarts():
  run = Run(1, 2, 1, min_workers=1)
  run.end('worker 1', KILLED)
  assert run.restart_due(1.0) == ['worker 1']
  run.end('worker 1', KILLED)
  run.end('worker 0', 0)
  assert not run.policy.failure


@pytest.mark.parametrize('name', ['worker 0', 'ps 0'])
def test_chief_and_ps_are_never_let_go(name):
  run = Run(1, 3, min_workers=1)
  run.end(name, KILLED)
  assert run.policy.failure.task.name == name


def test_with_the_fork_server_all_that_ran_start_again(caplog):
  run = Run(1, 3, 1)
  run.end('worker 1', 0)
  assert run.policy.note_server_death('killed by SIGKILL', 0.0, 5.0)
  assert caplog.messages == [
    'the fork server has died (killed by SIGKILL), and its tasks with it: '
    'restart 1 of 1 of all in 0.1 s'
  ]
  assert run.restart_due(5.0) == []
  # worker 1 as well, as the chief does the last steps again.
  assert run.restart_due(5.2) == ['ps 0', 'worker 0', 'worker 2', 'worker 1']
  # It is not the tasks that have failed.
  run.end('ps 0', KILLED, 6.0)
  assert not run.policy.failure
  assert not run.policy.note_server_death('killed by SIGKILL', 5.0, 7.0)


def test_a_fork_server_that_dies_after_the_training_is_not_missed():
  run = Run(1, 2, 1)
  run.end('worker 0', 0)
  assert run.policy.note_server_death('killed by SIGKILL', 0.0, 5.0)
  assert run.restart_due(100.0) == []
  assert not any(r.is_left for r in run.policy.records.values())


def test_tasks_that_can_only_start_together_do(caplog):
  run = Run(1, 2, 2, restart_together=True)
  run.end('worker 1', KILLED)
  assert run.killed == ['ps 0', 'worker 0']
  run.end('worker 0', -15)
  assert run.restart_due(1.0) == []  # The ps has still to leave.
  run.end('ps 0', -15)
  assert run.restart_due(1.0) == ['ps 0', 'worker 0', 'worker 1']
  assert {r.note for r in run.policy.records.values()} == {'restart 1 of 2'}
  assert caplog.messages == [
    'worker 1 (x:3) killed by SIGKILL: restart 1 of 2 in 0.1 s, with all other'
    ' tasks'
  ]


def test_tasks_that_start_together_share_their_restarts():
  run = Run(1, 2, 1, restart_together=True)
  run.end('worker 1', KILLED)
  run.end('worker 0', -15)
  run.end('ps 0', -15)
  assert len(run.restart_due(1.0)) == 3
  run.end('worker 0', KILLED, 1.0)
  assert run.policy.failure.task.name == 'worker 0'
  assert run.policy.failure.num_restarts == 1


def test_a_task_that_is_lost_runs_until_it_has_ended(caplog):
  run = Run(1, 2, 1, restart_together=True)
  run['worker 1'].reason = 'its executor has died'
  run.end('worker 1', None)
  assert run.killed == ['worker 1', 'ps 0', 'worker 0']
  assert caplog.messages[0].startswith(
    'worker 1 (x:3): its executor has died: rest'
  )
  for name in ('worker 0', 'ps 0'):
    run.end(name, -15)
  assert run.restart_due(1.0) == []
  run.end('worker 1', -15)
  assert len(run.restart_due(1.0)) == 3


def test_a_task_that_is_lost_for_good_fails_the_run():
  run = Run(1, 2)
  run.end('worker 1', None)
  assert run.policy.failure.exit_code == cli.LOST
  assert run['worker 1'].is_running


@pytest.mark.parametrize('code', [1, 3, KILLED])
def test_an_evaluator_that_fails_is_let_go(code, caplog):
  run = Run(1, 1)
  (task,) = jobs.make_evaluator_tasks(jobs.Job(evaluator=True))
  run.policy.note_start(run.policy.add(task), 0.0)
  run.end('evaluator 0', code)
  assert run.policy.failure is None
  assert 'the run goes on without it' in caplog.messages[-1]


@pytest.mark.parametrize('together', [True, False])
def test_an_evaluator_starts_again_alone(together):
  run = Run(0, 2, 1, restart_together=together)
  (task,) = jobs.make_evaluator_tasks(jobs.Job(evaluator=True))
  run.policy.note_start(run.policy.add(task), 0.0)
  run.end('evaluator 0', KILLED)
  assert run.killed == []
  assert run.restart_due(100.0) == ['evaluator 0']
  # Nor does it start again with the others.
  run.end('worker 1', KILLED)
  assert run.killed == ['worker 0'] * together


def make_budget(*limits, **more):
  return restart_policy.Budget(restart_policy.Limits(*limits, **more))


def test_the_wait_doubles_up_to_the_longest():
  budget = make_budget(99)
  found = [budget.take(0.0, 0.0) for _ in range(9)]
  assert found == [
    (i, pytest.approx(secs))
    for i, secs in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], 1)
  ]
  assert budget.total == 9


def test_after_a_steady_minute_the_wait_begins_anew():
  budget = make_budget(9)
  budget.take(0.0, 1.0)
  budget.take(1.0, 2.0)
  assert budget.take(2.0, 62.0) == (3, 0.1)


def test_a_window_of_0_is_the_whole_run():
  budget = make_budget(1, window_secs=0.0)
  assert budget.take(0.0, 0.0) == (1, 0.1)
  assert budget.take(1.0, 1e9) is None
  assert budget.total == 1


def test_within_a_window_only_its_own_restarts_count():
  budget = make_budget(2, window_secs=100.0)
  numbers = [budget.take(now, now)[0] for now in (0.0, 60.0, 101.0)]
  assert numbers == [1, 2, 2]
  assert budget.take(110.0, 110.0) is None
  assert budget.total == 3


def test_without_limits_nothing_starts_again():
  assert restart_policy.Budget(restart_policy.NO_LIMITS).take(0.0, 0.0) is None


def test_a_job_says_its_limits():
  job = jobs.Job(max_restarts=3, restart_window_secs=9.0, min_workers=2)
  assert restart_policy.from_job(job) == restart_policy.Limits(3, 9.0, 2)
