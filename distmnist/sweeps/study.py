"""What distinguishes a sweep from others: its trials, and their length."""

import dataclasses
import itertools

from distmnist.common import cli, command_line, stop_grace
from distmnist.common.names import TRAIN
from distmnist.launching import jobs, train_flags
from distmnist.sweeps import search_space

# The sweep sets these itself, or they would leave nothing to compare.
_OURS = (
  *jobs.CLUSTER_FLAGS,
  'logdir',
  'resume',
  'download_only',
  'help',
  'helpfull',
)


@dataclasses.dataclass(frozen=True)
class Study:
  """A sweep as sweep.json holds it; JSON can represent each of its values.

  Attributes:
    combinations: list of {flag: value}, str, one per trial; empty if they are
      proposed.
    flags: list of str, those of all trials, with each --flagfile read.
    num_ps, num_workers: ints, the cluster of each trial.
    module: dotted name, what a trial runs.
    rungs: list of [number of trials, flag of train that says how long], see
      halving.py; without --halving there is one.
    proposed: None, or if trials are proposed one by one (proposing.py),
      {'words': what the user gave, for search_space.parse, 'seed': int}.
  """

  combinations: list
  flags: list
  num_ps: int
  num_workers: int
  module: str
  rungs: list
  proposed: dict | None = None

  @property
  def num_trials(self):
    """int, of the whole sweep."""
    return self.rungs[0][0]

  @property
  def is_cluster(self):
    return self.num_ps + self.num_workers > 1

  @property
  def problem(self):
    """str, what --problem names; None for images."""
    return command_line.find_value(self.flags, 'problem')

  @property
  def stop_grace_secs(self):
    """How long (float) a trial that is told to stop may take.

    Raises:
      cli.UsageError: the flag for it is not a valid number of seconds.
    """
    return stop_grace.parse(self.flags)

  def check_flags(self):
    """Checks each flag of the trials on its own, before anything starts.

    Raises:
      cli.UsageError: one is wrong.
    """
    if self.module != TRAIN:
      return
    train_flags.check(self.flags)
    each = map(search_space.to_flags, self.find_examples())
    # The problem may have flags of its own.
    problem = [f'--problem={self.problem}'] if self.problem else []
    for word in sorted(set(itertools.chain(*each))):
      train_flags.check([*problem, word])

  def find_examples(self):
    """Returns the combinations, or if proposed, some that cover each end."""
    if not self.proposed:
      return self.combinations
    return search_space.make_ends(search_space.parse(self.proposed['words']))


def check_names(choices, given):
  """Refuses flags that the sweep itself gives to its trials.

  Args:
    choices: {name: Values or Range} of search_space.
    given: list of str, the flags of all trials.

  Raises:
    cli.UsageError: one is among them.
  """
  if 'problem' in choices:
    raise cli.UsageError(
      '--problem is not for a trial: trials of different problems are judged '
      'by metrics that cannot be compared'
    )
  for name in _OURS:
    if name in choices or command_line.find_value(given, name) is not None:
      raise cli.UsageError(
        f'--{name} is not for a trial: the sweep gives each a logdir of its '
        'own and resumes it, and --num_ps and --num_workers before the -- give '
        'it a cluster'
      )
