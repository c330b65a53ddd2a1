"""Jobs that are submitted again, without Spark and without a task."""

import dataclasses

import pytest

from distmnist.common import cli
from distmnist.spark import barrier_job, supervisor
from distmnist.spark.attempt import Failure

KILLED = Failure('worker 1', 'a:1', 'killed by SIGKILL', 137, 0, '/w.log')
LOST = Exception('ExecutorLostFailure (executor 3 exited) Reason: it went')


@dataclasses.dataclass
class Job:
  """In the place of a barrier_job.Job; ends at once with `error`."""

  error: Exception | None = None
  is_cancelled: bool = False
  has_ended: bool = True
  is_gone: bool = False

  def start(self):
    pass

  def end(self):
    self.is_gone = True

  def explain(self):
    return barrier_job.explain(self.error)


class Desk:
  """In the place of a desk.Desk.

  Its attempts end as `failures` (list of Failure or None) says.
  """

  has_tasks = False
  report = {'global_step': 7}

  def __init__(self, failures=(), missing=()):
    self._failures = list(failures)
    self.missing = list(missing)
    self.number = 0

  def begin(self):
    self.number += 1
    self.is_over = False
    self.failure = self._failures.pop(0) if self._failures else None
    return self.number

  def turn(self, secs):
    self.is_over = not self.missing

  def end_all(self):
    self.is_over = True

  def last_lines(self, name):
    return [f'{name} says so']


class Run:
  """A Supervisor, and what it does."""

  def __init__(self, desk, *jobs, max_restarts=3, start_secs=60.0):
    self.said = []
    self.jobs = list(jobs) or [Job() for _ in range(9)]
    self.num_waits = 0
    self.supervisor = supervisor.Supervisor(
      desk,
      lambda number: self.jobs[number - 1],
      self.wait,
      ('start', start_secs),
      max_restarts,
      self.said.append,
    )

  def wait(self):
    self.num_waits += 1


def test_a_run_that_goes_well_has_its_report():
  run = Run(Desk())
  assert run.supervisor.run() == {'global_step': 7}
  assert run.said == []
  assert run.jobs[0].is_gone and not run.jobs[1].is_gone


def test_after_a_failure_all_start_again_once_there_is_room():
  run = Run(Desk([KILLED, None]))
  assert run.supervisor.run() == {'global_step': 7}
  assert run.num_waits == 1
  assert run.said == [
    'worker 1 (a:1): killed by SIGKILL: restart 1 of 3, with all other tasks'
  ]


@pytest.mark.parametrize(
  ('failure', 'max_restarts', 'num_attempts'),
  [
    (KILLED, 0, 1),
    (KILLED, 2, 3),
    (dataclasses.replace(KILLED, exit_code=1), 2, 1),
    (dataclasses.replace(KILLED, exit_code=2), 2, 1),
    (dataclasses.replace(KILLED, exit_code=3), 2, 3),
  ],
)
def test_a_task_that_fails_for_good_is_named_with_its_last_lines(
  capsys, failure, max_restarts, num_attempts
):
  desk = Desk([failure] * 9)
  run = Run(desk, max_restarts=max_restarts)
  with pytest.raises(supervisor.TaskError) as caught:
    run.supervisor.run()
  assert desk.number == num_attempts
  assert caught.value.exit_code == failure.exit_code
  assert str(caught.value) == str(failure)
  assert run.said[-1] == 'the last lines of worker 1:'
  assert capsys.readouterr().err == '  | worker 1 says so\n'


def test_an_executor_that_is_lost_early_is_a_restart_too():
  run = Run(Desk(), Job(LOST), Job())
  assert run.supervisor.run() == {'global_step': 7}
  assert run.said == [
    'executor 3 was lost before its task began: it went: restart 1 of 3, with'
    ' all other tasks'
  ]


def test_executors_that_are_lost_again_and_again_are_an_error():
  run = Run(Desk(), *[Job(LOST)] * 2, max_restarts=1)
  with pytest.raises(cli.LostError, match='executor 3 was lost before'):
    run.supervisor.run()


@pytest.mark.parametrize('is_cancelled', [False, True])
def test_a_job_that_spark_gives_up_is_explained(is_cancelled):
  job = Job(Exception('no such class'), is_cancelled)
  desk = Desk([KILLED] if is_cancelled else [])
  with pytest.raises(cli.RunError, match='given up the job: no such class'):
    Run(desk, job).supervisor.run()
  assert job.is_gone


def test_tasks_that_spark_does_not_start_are_named():
  job = Job(has_ended=False)
  run = Run(Desk(missing=['ps 0', 'worker 1']), job, start_secs=0.0)
  with pytest.raises(
    cli.LostError, match='waited 0 s for Spark to start ps 0, worker 1: are'
  ):
    run.supervisor.run()
  assert job.is_gone


def test_ctrl_c_ends_the_job(monkeypatch):
  desk, job = Desk(), Job(has_ended=False)

  def interrupt(secs):
    raise KeyboardInterrupt

  monkeypatch.setattr(desk, 'turn', interrupt)
  with pytest.raises(KeyboardInterrupt):
    Run(desk, job).supervisor.run()
  assert job.is_gone and desk.is_over
