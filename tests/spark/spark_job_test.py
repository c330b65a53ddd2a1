"""Jobs of Spark, without Spark: what their errors say."""

import pytest

from distmnist.spark import spark_job

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
  assert spark_job.explain(ValueError(text)) == line


def test_an_executor_that_is_lost_early_is_named():
  text = (
    'Most recent failure reason: Stage failed because barrier task ResultTask'
    '(0, 1) finished unsuccessfully.\nExecutorLostFailure (executor 1 exited'
    ' caused by one of the running tasks) Reason: Command exited with code 137'
  )
  assert spark_job.find_lost_executor(ValueError(text)) == (
    'executor 1 was lost before its task began: Command exited with code 137'
  )
  assert spark_job.find_lost_executor(ValueError(PYTHON_ERROR)) is None
