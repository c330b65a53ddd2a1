"""Weights & Biases: one run per launch, one group of charts per task.

WANDB_MODE=offline, WANDB_PROJECT, WANDB_API_KEY and so on are wandb's own.
"""

import importlib.util
import os

from distmnist.common import cli


def check():
  """Raises cli.RunError if wandb is not installed."""
  if importlib.util.find_spec('wandb') is None:
    raise cli.RunError('wandb is not installed: pip install distmnist[wandb]')


class Logger:
  """Each number is TASK/NAME; the x axis is `global_step`, or the time."""

  def __init__(self, logdir, flags):
    """Starts a run of W&B.

    Raises:
      cli.RunError: there is no key for the server, or no server.
    """
    import wandb

    try:
      self._run = wandb.init(
        project=os.environ.get('WANDB_PROJECT', 'distmnist'),
        name=os.path.basename(os.path.normpath(logdir)),
        dir=logdir,
        config=flags,
      )
    except wandb.Error as error:
      raise cli.RunError(f'W&B: {error} Or set WANDB_MODE=offline') from error
    self._run.define_metric('global_step')
    self._run.define_metric('secs')
    self._run.define_metric('ps_*', step_metric='secs')
    for names in ('worker_*', 'evaluator_*', 'validation/*', 'test/*'):
      self._run.define_metric(names, step_metric='global_step')
    self._first_time = None

  def log(self, task, time, step, numbers):
    """Logs {name: number} of a task at a global step (int or None)."""
    self._first_time = self._first_time or time
    row = {f'{task.replace(" ", "_")}/{n}': x for n, x in numbers.items()}
    row['secs'] = time - self._first_time
    if step is not None:
      row['global_step'] = step
    self._run.log(row)

  def close(self, ok):
    """Ends the run; `ok` is whether it went well."""
    self._run.finish(exit_code=0 if ok else 1)


make = Logger
