"""Jobs of Spark, without Spark: what errors say, and what follows a job."""

import pytest

from distmnist.common import cli
from distmnist.spark import barrier_job
from tests.support.host_room import FakeJob

PYTHON_ERROR = """An error occurred while calling z:collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 2044, in main
    process()
ModuleNotFoundError: No module named 'absl'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


JAVA_ERROR = """An error occurred while calling z:collectAndServe.
: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


@pytest.mark.parametrize(
  ('text', 'line'),
  [
    (PYTHON_ERROR, "ModuleNotFoundError: No module named 'absl'"),
    (JAVA_ERROR, '[SPARK_JOB_CANCELLED] Job 1 cancelled'),
    ('only\nthis', 'only'),
    ('', 'ValueError'),
  ],
)
def test_an_error_of_spark_becomes_one_line(text, line):
  assert barrier_job.explain(ValueError(text)) == line


def test_an_executor_that_is_lost_early_is_named():
  text = (
    'Most recent failure reason: Stage failed because barrier task ResultTask'
    '(0, 1) finished unsuccessfully.\nExecutorLostFailure (executor 1 exited'
    ' caused by one of the running tasks) Reason: Command exited with code 137'
  )
  assert barrier_job.find_lost_executor(ValueError(text)) == (
    'executor 1 was lost before its task began: Command exited with code 137'
  )
  assert barrier_job.find_lost_executor(ValueError(PYTHON_ERROR)) is None


class Run:
  """A BarrierStage, its jobs, and how often it has waited for slots."""

  def __init__(self, *jobs, start_secs=60.0):
    self.num_waits = 0
    self.stage = barrier_job.BarrierStage(
      lambda attempt, port, on_end: jobs[attempt - 1],
      self.wait,
      ('start', start_secs),
    )

  def wait(self):
    self.num_waits += 1


def test_a_job_follows_the_last_one_once_there_are_slots():
  jobs = FakeJob(Exception('lost')), FakeJob()
  run = Run(*jobs)
  run.stage.submit(1, None)
  assert jobs[0].is_started and run.num_waits == 0
  run.stage.submit(1, None)
  assert jobs[0].is_gone and jobs[1].is_started
  assert (run.num_waits, run.stage.attempt) == (1, 2)


@pytest.mark.parametrize('is_cancelled', [False, True])
def test_a_job_that_spark_gives_up_is_explained(is_cancelled):
  run = Run(FakeJob(Exception('no such class'), is_cancelled=is_cancelled))
  run.stage.submit(1, None)
  said = 'given up the job: no such class'
  with pytest.raises(cli.RunError, match=said):
    run.stage.check_end(has_failed=False)
  with pytest.raises(cli.RunError, match=said):
    run.stage.find_loss([], has_agents=False)
  if is_cancelled:
    with pytest.raises(cli.RunError, match=said):
      run.stage.submit(1, None)
  else:
    run.stage.check_end(has_failed=True)


def test_agents_have_some_time_to_say_what_has_happened(monkeypatch):
  run = Run(FakeJob(Exception('no such class')))
  run.stage.submit(1, None)
  assert run.stage.find_loss([], has_agents=True) is None
  monkeypatch.setattr(barrier_job, 'END_SECS', -1.0)
  run.stage._deadline = None
  with pytest.raises(cli.RunError, match='given up the job'):
    run.stage.find_loss([], has_agents=True)


def test_an_executor_that_is_lost_early_is_asked_for():
  run = Run(FakeJob(Exception('lost'), lost='executor 3 was lost'))
  run.stage.submit(1, None)
  assert run.stage.find_loss(['ps 0'], False) == 'executor 3 was lost'


def test_tasks_that_spark_does_not_start_are_named():
  run = Run(FakeJob(), start_secs=0.0)
  run.stage.submit(1, None)
  assert run.stage.find_loss([], True) is None
  with pytest.raises(
    cli.LostError, match='waited 0 s for Spark to start ps 0, worker 1: are'
  ):
    run.stage.find_loss(['ps 0', 'worker 1'], True)


def test_nothing_submitted_is_nothing_to_end():
  run = Run()
  run.stage.cancel()
  run.stage.end()
