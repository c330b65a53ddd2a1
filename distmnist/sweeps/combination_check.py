"""Has train check every combination of a sweep, all in one process."""

import os

from distmnist.common import cli, files
from distmnist.common.names import CHECK
from distmnist.sweeps import runners, search_space
from distmnist.sweeps import trials as trials_lib


def check(runner, command, trials, folder):
  """Checks that each trial's flags fit each other, the data and the machine.

  Returns early if a signal comes.

  Args:
    runner: runners.Runner, that of the trials.
    command: trial_command.TrialCommand.
    trials: list of trials.Trial.
    folder: str, that of the sweep.

  Raises:
    cli.UsageError: names the first combination that cannot work.
    cli.RunError: the check itself has failed.
  """
  path, log = (os.path.join(folder, f'check.{end}') for end in ('json', 'log'))
  asked = {
    'num_ps': command.spec.num_ps,
    'num_workers': command.spec.num_workers,
    'needs_data': True,
    'flags': [command.make_train_flags(trial, 0) for trial in trials],
  }
  files.write_json(path, asked)
  argv = ['python', '-m', CHECK, path]
  start = runner.start(runners.Command('check', argv, log, command.env))
  ended = runner.wait()
  if not ended:
    runner.stop(grace_secs=0)
    return
  ((_, code),) = ended
  if code:
    cause = trials_lib.find_cause(log, start, code)
    raise cli.RunError(f'the trials cannot be checked: {cause}')
  mistakes = files.read_json(f'{path}.checked')
  for name in (path, log, f'{path}.checked'):
    os.remove(name)
  wrong = [pair for pair in zip(trials, mistakes, strict=True) if pair[1]]
  if wrong:
    trial, mistake = wrong[0]
    more = f' ({len(wrong)} of {len(trials)} cannot work)' * (len(wrong) > 1)
    raise cli.UsageError(
      f'no trial was started: with '
      f'{search_space.describe(trial.combination)}: {mistake}{more}'
    )
