"""Trials that are proposed one by one, each from those that have ended.

Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization" (NeurIPS),
for the tree-structured Parzen estimator, `tpe`: among the trials that ended,
l(x) is the density of the best ones and g(x) that of the others, and the next x
is one with a large l(x) / g(x). Optuna computes it, when asked. The sweep runs
the trials and keeps them in its folder: Optuna keeps nothing, and is told of
all trials there, including those of an earlier run of the same sweep.
"""

from distmnist.common import cli
from distmnist.sweeps import results, search_space
from distmnist.sweeps import trials as trials_lib


def check_ready():
  """Raises cli.UsageError if Optuna is not installed."""
  try:
    import optuna  # noqa: F401, PLC0415  Only for proposing.
  except ImportError as error:
    raise cli.UsageError(
      f'--sampler=tpe needs Optuna ({error}): pip install optuna, or '
      'distmnist[tpe]'
    ) from error


class Proposer:
  """Proposes the trials of a sweep by --sampler=tpe."""

  def __init__(self, study, folder):
    """
    Args:
      study: study.Study, whose trials are proposed.
      folder: str, that of the trials.
    """
    self._choices = search_space.parse(study.proposed['words'])
    self._seed = study.proposed['seed']
    self._num_trials = study.num_trials
    self._folder = folder

  def find_known(self):
    """Returns the trials (list of trials.Trial) that were proposed before.

    Raises:
      cli.RunError: the file of one does not belong to this sweep.
    """
    found = []
    while len(found) < self._num_trials:
      trial = self._make(len(found) + 1, {})
      known = trial.read()
      if known is None:
        break
      trial.combination = known.get('combination')
      if not self._is_one(trial.combination):
        raise trial.bad_file(f'has combination {trial.combination!r:.60}')
      found.append(trial)
    return found

  def make_probes(self):
    """Returns trials that are not to be run, but cover each end."""
    ends = search_space.make_ends(self._choices)
    return trials_lib.make_trials(ends, self._folder)

  def propose(self, trials):
    """Returns the next Trial, given `trials`, all those before it."""
    import optuna  # noqa: PLC0415  Only for proposing.

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    by, sign = results.read_metric([t.result for t in trials if t.results])
    study = optuna.create_study(
      direction='maximize' if sign > 0 else 'minimize',
      # Each trial has its own seed, so that a resumed sweep repeats nothing.
      sampler=optuna.samplers.TPESampler(
        seed=self._seed + len(trials), constant_liar=True
      ),
    )
    space = {n: c.make_distribution(optuna) for n, c in self._choices.items()}
    for trial in trials:
      study.add_trial(self._tell(optuna, space, trial, by))
    asked = study.ask(space).params
    combination = {n: c.format(asked[n]) for n, c in self._choices.items()}
    return self._make(len(trials) + 1, combination)

  def _tell(self, optuna, space, trial, by):
    """Returns a trial as Optuna represents it.

    A diverged trial counts as worse than all that ended, and a running one as
    bad, so that the next one is not close to it; nothing is learned from a
    failed one.
    """
    states, value = optuna.trial.TrialState, None
    state = states.RUNNING
    if trial.results:
      state, value = states.COMPLETE, trial.result[by]
    elif trial.state in trials_lib.LOST:
      is_result = trial.state == trials_lib.DIVERGED
      state = states.PRUNED if is_result else states.FAIL
    return optuna.trial.create_trial(
      state=state,
      value=value,
      params={
        name: choice.parse(trial.combination[name])
        for name, choice in self._choices.items()
      },
      distributions=space,
    )

  def _make(self, number, combination):
    return trials_lib.make_trial(
      number, self._num_trials, combination, self._folder
    )

  def _is_one(self, combination):
    """Whether a value read from a file is a combination of the choices."""
    return (
      isinstance(combination, dict)
      and combination.keys() == self._choices.keys()
      and all(c.holds(combination[n]) for n, c in self._choices.items())
    )
