"""The program of training tasks on Spark: train, or a user's function."""

from __future__ import annotations

import base64
import dataclasses
import os
import secrets
import sys
import types
from typing import Any

from distmnist.common import cli, command_line
from distmnist.common.names import LAUNCH_ID, SPARK_MAIN, TRAIN
from distmnist.launching import jobs, problem_file
from distmnist.launching import train_flags as train_flags_lib
from distmnist.spark import executors


@dataclasses.dataclass(frozen=True)
class Program:
  """The program of a task.

  Attributes:
    module: dotted name.
    flags: for every task.
    env: holds the file of --problem.
    main: a function and its arguments as text, or None.
  """

  module: str
  flags: list[str]
  env: tuple[tuple[str, str], ...] = ()
  main: str | None = None

  @property
  def is_of_images(self) -> bool:
    """Whether it learns the images of --dataset."""
    return not self.main and not command_line.find_value(self.flags, 'problem')

  def make_spec(
    self, num_ps: int, num_workers: int, feed: dict[str, Any] | None
  ) -> dict[str, Any]:
    """Returns what each partition is told of it.

    Args:
      num_ps, num_workers: the shape of the cluster.
      feed: from Feed.bring, or None.
    """
    env = (
      *self.env,
      (LAUNCH_ID, os.environ.get(LAUNCH_ID) or secrets.token_hex(8)),
    )
    return {
      **{'num_ps': num_ps, 'num_workers': num_workers, 'main': self.main},
      **{'module': self.module, 'train_flags': self.flags, 'env': env},
      'feed': feed,
    }


def make(program: Any, args: Any, module: str) -> Program:
  """Returns the Program.

  Args:
    program, args: see training.run.
    module: dotted name, what a task runs if `program` is not a function.

  Raises:
    cli.UsageError: it cannot work on executors.
  """
  if isinstance(program, types.FunctionType):
    return Program(SPARK_MAIN, [], main=_pack(program, args))
  if isinstance(program, types.ModuleType):
    program = program.__file__
  if program is not None:
    args = [f'--problem={os.fspath(program)}', *args]
  given = train_flags_lib.expand(args)
  env = problem_file.make_env(command_line.find_value(given, 'problem'))
  jobs.check_train_flags(given)
  if module == TRAIN:
    train_flags_lib.check(given)
  executors.check_paths(given)
  return Program(module, given, env)


def _pack(function: types.FunctionType, args: Any) -> str:
  """Returns a function and its arguments as text.

  The functions of its module are sent as they are here; what the module imports
  must be present where the executors run.

  Raises:
    cli.UsageError: they cannot be pickled.
  """
  from pyspark import cloudpickle

  module = sys.modules.get(function.__module__)
  by_value = module is not None and module.__name__ != '__main__'
  if by_value:
    cloudpickle.register_pickle_by_value(module)
  try:
    content = cloudpickle.dumps((function, args))
  except Exception as error:
    raise cli.UsageError(
      f'{function.__name__} and its args cannot be sent to the executors: '
      f'{str(error).splitlines()[0]}'
    ) from error
  finally:
    if by_value:
      cloudpickle.unregister_pickle_by_value(module)
  return base64.b64encode(content).decode('ascii')
