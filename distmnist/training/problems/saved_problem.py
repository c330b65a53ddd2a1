"""The problem of a run that is over, or goes on elsewhere.

What evaluate and export begin with; train has no --checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from distmnist.common import console
from distmnist.logdir import saved_run
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_module, problem_source


def import_named(words: Sequence[str]) -> None:
  """Imports the problem that a command line or the run that it names has.

  Raises:
    cli.UsageError: it cannot be imported, or is another user's.
  """
  problem_module.import_named(saved_run.add_problem(words))


def load(timeout_secs: float = 0) -> tuple[str, problem_lib.Problem]:
  """Takes the flags of the run that --logdir or --checkpoint names.

  Args:
    timeout_secs: how long the run may take to begin.

  Returns:
    (log directory, problem). A line on stderr says if the problem has changed.

  Raises:
    cli.UsageError: no run is named, or its problem is another user's.
    cli.RunError: there is no run.
  """
  logdir = saved_run.logdir_from_flags()
  saved_run.take_flags(logdir, timeout_secs, problem_module.import_named)
  problem = problem_lib.from_flags()
  if changed := problem_source.find_change(problem, logdir):
    console.print_to_stderr(changed)
  return logdir, problem
