"""run_task: runs the user's own script as a task of a cluster."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from absl import flags

from distmnist.common import cli
from distmnist.common.names import OWN_LOOP


def run_task(train: Callable[[Any], object]) -> NoReturn:
  """Runs this process as a task of its cluster; does not return.

  Args:
    train: called by a worker, but not by a ps, with its own_loop.WorkerTask.
  """
  argv, conflict = sys.argv, None
  own_loop: Any = None
  try:
    own_loop = importlib.import_module(OWN_LOOP)
  except flags.DuplicateFlagError as error:
    # Not all flags of the command line are defined.
    argv, conflict = argv[:1], str(error).partition(' Description from')[0]

  function = _find_function(train)

  @functools.wraps(function)  # The program is named after its file.
  def main() -> int | None:
    if conflict:
      raise cli.UsageError(f"{conflict} Remove the script's flag, or rename it")
    return own_loop.run(train, function.__code__.co_filename)

  def is_shown(name: str) -> bool:
    checks = own_loop and own_loop.script_checks
    return not checks or checks.is_read(name, function.__code__.co_filename)

  cli.run(main, argv, leave=os._exit, is_shown=is_shown)
  raise SystemExit  # Only for a type checker: the process has ended.


def _find_function(train: Callable[..., object]) -> Any:
  """Returns the function (with a __code__) that a callable comes down to."""
  train = inspect.unwrap(train)
  while isinstance(train, functools.partial):
    train = inspect.unwrap(train.func)
  return train if hasattr(train, '__code__') else type(train).__call__
