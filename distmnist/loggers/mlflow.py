"""MLflow: one run per launch, with its flags as parameters.

MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and so on are MLflow's own; by
default the runs go where MLflow decides: ./mlflow.db (sqlite) or ./mlruns.
"""

import contextlib
import importlib.util
import os
import re

from distmnist.common import cli

# The longest value of a parameter.
_MAX_CHARS = 500


def check():
  """Raises cli.RunError if MLflow is not installed."""
  if importlib.util.find_spec('mlflow') is None:
    raise cli.RunError('MLflow is not installed: pip install distmnist[mlflow]')


def _name(task, name):
  """Returns TASK/NAME (str) with _ for what MLflow takes in no name.

  Where it is a path, each of its parts has to be the name of a file.
  """
  name = re.sub(r'[^\w./: -]', '_', name)
  name = re.sub(r'(?<![^/])\.{0,2}(?![^/])', '_', name)
  return f'{task.replace(" ", "_")}/{name}'


@contextlib.contextmanager
def _explained(mlflow):
  """Makes an error of MLflow, such as a server that is not there, one line."""
  try:
    yield
  except mlflow.exceptions.MlflowException as error:
    raise cli.RunError(
      f'MLflow at {mlflow.get_tracking_uri()}: {error}; see MLFLOW_TRACKING_URI'
    ) from error


class Logger:
  """Each number is the metric TASK/NAME at the global step.

  Each method raises cli.RunError if MLflow's store is not there.
  """

  def __init__(self, logdir, flags):
    import mlflow

    self._mlflow = mlflow
    with _explained(mlflow):
      self._client = mlflow.MlflowClient()
      name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'distmnist')
      mlflow.set_experiment(name)
      run_name = os.path.basename(os.path.normpath(logdir))
      self._run = mlflow.start_run(run_name=run_name)
      mlflow.log_params({n: str(x)[:_MAX_CHARS] for n, x in flags.items()})
    self._first_time = None

  def log(self, task, time, step, numbers):
    """Logs {name: number} of a task at a global step (int or None)."""
    self._first_time = self._first_time or time
    # A ps has no step: whole seconds stand in for it.
    step = int(time - self._first_time) if step is None else step
    metrics = [
      self._mlflow.entities.Metric(_name(task, name), x, int(1000 * time), step)
      for name, x in numbers.items()
    ]
    with _explained(self._mlflow):
      self._client.log_batch(self._run.info.run_id, metrics)

  def close(self, ok):
    """Ends the run; `ok` is whether it went well."""
    with _explained(self._mlflow):
      self._mlflow.end_run('FINISHED' if ok else 'FAILED')


make = Logger
