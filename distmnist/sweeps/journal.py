"""What a sweep remembers: a study of Optuna, in Optuna's journal file.

SWEEP_DIR/journal.log is a log of changes, each written before the next step is
taken, so that the same command goes on after any kill; `optuna-dashboard` reads
it at any time. A trial of the sweep is a trial of Optuna with the attributes
`trial`, its name, and `outcome`, which is the truth; Optuna's own state follows
from that:

  running, stopped  RUNNING: it goes on from its checkpoint
  done              COMPLETE; Optuna always maximizes, so a loss is negated
  dropped           PRUNED, with the results of its rungs as steps
  diverged          PRUNED, without any: worse than all that have a result
  failed            FAIL; if retried, another trial of Optuna has its name

TPE (Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization",
NeurIPS) chooses the next trial from these: where l(x) is the density of the
best ones and g(x) that of the others, l(x) / g(x) is large. A running one
counts as bad, so that the next one is not close to it, and a failed one not at
all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from distmnist.common import cli, files
from distmnist.sweeps import results
from distmnist.sweeps import spec as spec_lib
from distmnist.sweeps import trials as trials_lib

NAME = 'journal.log'
_NUM_AT_RANDOM = 10  # combinations, before TPE has enough to choose by
_STUDY = 'sweep'
_log = logging.getLogger(__name__)


def check_ready() -> None:
  """Raises cli.UsageError if Optuna is not installed."""
  try:
    import optuna  # noqa: F401, PLC0415  The extra `sweep`; takes half a second.
  except ImportError as error:
    raise cli.UsageError(
      f'a sweep needs Optuna ({error}): pip install optuna, or distmnist[sweep]'
    ) from error


class Journal:
  """The trials of a sweep, and its file.

  The caller holds the sweep's folder; nobody else adds trials.

  Attributes:
    trials: all, or if they are proposed those so far.
  """

  def __init__(self, path: str, spec: spec_lib.Spec, folder: str) -> None:
    """Reads the file, if there is one.

    Args:
      path: of the file.
      spec: the sweep.
      folder: that of the trials.

    Raises:
      cli.UsageError: the file is another sweep's, or there is none and a trial
        has run in `folder`.
      cli.RunError: it was not written by a sweep, or cannot be read or written.
    """
    import optuna  # noqa: PLC0415  See check_ready.

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    self._optuna: Any = optuna
    self._path = path
    self._spec = spec
    self._folder = folder
    # Optuna's, None until there is a file.
    self._storage: Any = None
    self._study: Any = None
    self.trials = trials_lib.make_trials(spec.combinations, folder, spec.seeds)
    if os.path.lexists(path):
      self._load()
    if not self._study:
      self._check_unused()

  def _check_unused(self) -> None:
    """Raises cli.UsageError if a trial of another sweep has run here.

    Its checkpoints may be those of other flags, and the trial of that number
    would go on from them.
    """
    pattern = os.path.join(glob.escape(self._folder), '*', 'run', '*')
    if found := next(glob.iglob(pattern), None):
      raise cli.UsageError(
        f'--sweep_dir={os.path.dirname(self._path)} has {found}, of a sweep'
        f' that {NAME} does not know: give another folder, or remove'
        f' {self._folder}'
      )

  def _load(self) -> None:
    try:
      _cut_torn_line(self._path)
      self._open_storage()
      if _STUDY not in self._optuna.get_all_study_names(self._storage):
        return  # Killed before it began.
      study = self._optuna.load_study(study_name=_STUDY, storage=self._storage)
      known, found = study.user_attrs, study.trials
    except OSError as error:
      raise cli.choose_error(error)(
        f'{self._path} cannot be read: {error.strerror}; once it can, the same'
        ' command goes on'
      ) from error
    except Exception as error:  # Whatever Optuna makes of such a file.
      raise self._bad_file(f'cannot be read ({error})') from error
    if 'spec' not in known:
      return
    self._check_same(known['spec'])
    if known.get('problem_sha256') != self._spec.problem_sha256:
      _log.info(
        f'the file of --problem has changed since the sweep in'
        f' {os.path.dirname(self._path)} began: trials that have ended are of'
        ' the earlier file; another --sweep_dir runs them anew'
      )
    self._study = study
    for trial in found:
      self._take(trial)
    with self._writing():
      for trial in self.trials:
        if trial.optuna_number is not None:
          self._tell(trial)  # A kill may have come between the two.

  def _find_id(self, known: Any) -> int:
    """Returns by which number the storage knows a trial."""
    study = self._storage.get_study_id_from_name(_STUDY)
    return self._storage.get_trial_id_from_study_id_trial_number(
      study, known.number
    )

  def _open_storage(self) -> None:
    journal = self._optuna.storages.journal
    lock = journal.JournalFileSymlinkLock(self._path)
    with contextlib.suppress(RuntimeError):  # There is none.
      lock.release()  # A kill has left it: the folder is ours.
    self._storage = self._optuna.storages.JournalStorage(
      journal.JournalFileBackend(self._path, lock)
    )

  def _bad_file(self, what: str) -> cli.RunError:
    return cli.RunError(
      f'{self._path} {what}: that was not written by a sweep; give another '
      '--sweep_dir'
    )

  def _check_same(self, known: Mapping[str, Any]) -> None:
    """Raises cli.UsageError if it is another sweep's file."""
    folder = os.path.dirname(self._path)
    for name, value in dataclasses.asdict(self._spec).items():
      if known.get(name) != value:
        raise cli.UsageError(
          f'--sweep_dir={folder} holds another sweep: its '
          f'{name} were {known.get(name)!r} and not {value!r}; give the same '
          'command line again, or another folder'
        )

  def _take(self, found: Any) -> None:
    """Takes over an Optuna trial (FrozenTrial), which may have a successor."""
    name = found.user_attrs.get('trial')
    if name is None:  # Its sweep was killed while it was proposed.
      states = self._optuna.trial.TrialState
      if found.state == states.RUNNING:
        with self._writing():
          self._study.tell(found.number, state=states.FAIL)
      return
    try:
      combination = {
        flag: choice.format(found.params[flag])
        for flag, choice in self._spec.choices.items()
      }
      if not all(
        c.holds(combination[n]) for n, c in self._spec.choices.items()
      ):
        raise ValueError('a value that was not to be tried')
      place = int(name) - 1
      if self._spec.is_proposed and place == len(self.trials):
        self._add(combination)
      trial = self.trials[place]
      # Proposed ones, too: each has that of the first of its repeats.
      first = self.trials[place - trial.repeat]
      if (trial.name, trial.combination) != (name, combination) or (
        first.combination != combination
      ):
        raise ValueError(f'combination {combination}')
      if 'outcome' in found.user_attrs:
        trial.take_outcome(found.user_attrs['outcome'])
    except (IndexError, KeyError, TypeError, ValueError) as error:
      raise self._bad_file(f'has, in trial {name!r}, {error}') from error
    trial.optuna_number = found.number

  def _add(self, combination: dict[str, str]) -> trials_lib.Trial:
    self.trials.append(
      trials_lib.make_trial(
        *(len(self.trials) + 1, self._spec.num_trials, combination),
        *(self._folder, self._spec.seeds),
      )
    )
    return self.trials[-1]

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """Raises cli.RunError if the file cannot be written."""
    try:
      yield
    except OSError as error:
      raise cli.choose_error(error)(
        f'{self._path} cannot be written: {error.strerror}; once it can, the '
        'same command goes on'
      ) from error

  def begin(self) -> None:
    """Marks the file as this sweep's for good."""
    if not self._study:
      with self._writing():
        self._begin()

  def _begin(self) -> None:
    self._open_storage()
    self._study = self._optuna.create_study(
      storage=self._storage,
      study_name=_STUDY,
      direction='maximize',
      load_if_exists=True,
    )
    self._study.set_user_attr('problem_sha256', self._spec.problem_sha256)
    self._study.set_user_attr('spec', dataclasses.asdict(self._spec))

  def propose(self) -> trials_lib.Trial:
    """Adds a further trial: a repeat of the last combination, or a new one.

    A new one is chosen by Optuna from the trials so far.
    """
    if len(self.trials) % self._spec.repeats:
      return self._add(self.trials[-1].combination)
    # Each trial has its own seed, so that a resumed sweep repeats nothing.
    self._study.sampler = self._optuna.samplers.TPESampler(
      n_startup_trials=_NUM_AT_RANDOM * self._spec.repeats,
      seed=self._spec.first_seed + len(self.trials),
      constant_liar=True,
    )
    with self._writing():
      asked = self._study.ask(self._make_space())
      trial = self._add(
        {n: c.format(asked.params[n]) for n, c in self._spec.choices.items()}
      )
      trial.optuna_number = asked.number
      asked.set_user_attr('trial', trial.name)
    return trial

  def _make_space(self) -> dict[str, Any]:
    choices = self._spec.choices
    return {n: c.make_distribution(self._optuna) for n, c in choices.items()}

  def save(self, trial: trials_lib.Trial) -> None:
    """Writes how a trial stands, before the sweep goes on.

    Raises:
      cli.RunError: it cannot be written.
    """
    known = self._find(trial)
    with self._writing():
      if known is None or known.state.is_finished():
        self._start_again(trial)
      else:
        self._storage.set_trial_user_attr(
          self._find_id(known), 'outcome', trial.outcome
        )
      self._tell(trial)

  def _find(self, trial: trials_lib.Trial) -> Any:
    """Returns the latest Optuna trial (FrozenTrial) of a trial, or None."""
    number = trial.optuna_number
    if number is None:
      return None
    return self._study.get_trials(deepcopy=False)[number]

  def _start_again(self, trial: trials_lib.Trial) -> None:
    """Adds a trial of Optuna: the first for `trial`, or to retry it."""
    trial.optuna_number = len(self._study.get_trials(deepcopy=False))
    self._study.add_trial(
      self._optuna.trial.create_trial(
        state=self._optuna.trial.TrialState.RUNNING,
        params={
          name: choice.parse(trial.combination[name])
          for name, choice in self._spec.choices.items()
        },
        distributions=self._make_space(),
        user_attrs={'trial': trial.name, 'outcome': trial.outcome},
      )
    )

  def _tell(self, trial: trials_lib.Trial) -> None:
    """Tells Optuna the results of a trial, and if it is over, its end."""
    known, num_rungs = self._find(trial), len(self._spec.rungs)
    if known.state.is_finished():
      return
    values = [results.choose_value(result) for result in trial.results]
    if num_rungs > 1:
      for rung, (_, value) in enumerate(values):
        step = trial.results[rung].get('global_step') or rung
        if step not in known.intermediate_values:
          self._storage.set_trial_intermediate_value(
            self._find_id(known), step, value
          )
    if not trial.is_over(num_rungs):
      return
    states = self._optuna.trial.TrialState
    if trial.state == trials_lib.DONE:
      self._name_metric(values[-1][0])
      self._study.tell(known.number, values[-1][1])
    else:
      is_failed = trial.state == trials_lib.FAILED
      state = states.FAIL if is_failed else states.PRUNED
      self._study.tell(known.number, state=state)

  def _name_metric(self, name: str) -> None:
    """Has Optuna's pictures say what the values are."""
    if not self._study.metric_names:
      with warnings.catch_warnings():
        warnings.simplefilter(
          'ignore', self._optuna.exceptions.ExperimentalWarning
        )
        self._study.set_metric_names([name])


def _cut_torn_line(path: str) -> None:
  """Removes a last line that a kill has cut off: Optuna would refuse it.

  Raises:
    OSError: the file cannot be opened, or is a link.
    ValueError: its last line is no JSON, which Optuna passes over at first.
  """
  with open(path, 'r+b', opener=files.no_follow) as file:
    *whole, torn = file.read().split(b'\n')
    if torn:
      file.truncate(file.tell() - len(torn))
  if whole:
    json.loads(whole[-1])
