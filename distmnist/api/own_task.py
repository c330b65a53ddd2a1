"""run_task: this process is a task of a cluster, by a script of its own."""

import functools
import importlib
import os
import sys

from absl import flags

from distmnist.common import cli

# Not imported before the script has defined its flags: it defines ours.
_OWN_LOOP = 'distmnist.training.own_loop'


def run_task(train):
  """Runs this process as a task of its cluster; does not return.

  Args:
    train: callable(own_loop.WorkerTask), of a worker. A ps does without.
  """
  argv, conflict = sys.argv, None
  try:
    own_loop = importlib.import_module(_OWN_LOOP)
  except flags.DuplicateFlagError as error:
    # Of the flags of the command line not all are defined.
    argv, conflict = argv[:1], str(error).partition(' Description from')[0]

  @functools.wraps(train)  # Its file is the program.
  def main():
    if conflict:
      raise cli.UsageError(
        f'{conflict} Leave out that of the script, or give it another name'
      )
    return own_loop.run(train)

  cli.run(main, argv, leave=os._exit)
