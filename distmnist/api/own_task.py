"""run_task: runs the user's own script as a task of a cluster."""

import functools
import importlib
import inspect
import os
import sys

from absl import flags

from distmnist.common import cli
from distmnist.common.names import OWN_LOOP


def run_task(train):
  """Runs this process as a task of its cluster; does not return.

  Args:
    train: callable(own_loop.WorkerTask), which a worker runs, but not a ps.
  """
  argv, conflict = sys.argv, None
  try:
    own_loop = importlib.import_module(OWN_LOOP)
  except flags.DuplicateFlagError as error:
    # Not all flags of the command line are defined.
    argv, conflict = argv[:1], str(error).partition(' Description from')[0]

  function = _find_function(train)

  @functools.wraps(function)  # The program is named after its file.
  def main():
    if conflict:
      raise cli.UsageError(f"{conflict} Remove the script's flag, or rename it")
    return own_loop.run(train, function.__code__.co_filename)

  cli.run(main, argv, leave=os._exit)


def _find_function(train):
  """Returns the function (with a __code__) that a callable comes down to."""
  train = inspect.unwrap(train)
  while isinstance(train, functools.partial):
    train = inspect.unwrap(train.func)
  return train if hasattr(train, '__code__') else type(train).__call__
