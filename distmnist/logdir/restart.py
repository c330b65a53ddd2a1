"""What a training begins with, and goes back to when a ps is lost."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from absl import flags

from distmnist.common import cli
from distmnist.common.names import ATTEMPT
from distmnist.logdir import (
  begin_file,
  checkpoint_reader,
  checkpoints,
  earlier_runs,
  logdirs,
  run_data,
  run_flags,
  worker_records,
)
from distmnist.storage import paths, urls

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.common import owner as owner_lib

_log = logging.getLogger(__name__)
# Given the path of a checkpoint, its step, and whether it is another run's: has
# the training ended there?
IsLast = Callable[[str, int, bool], bool]

_RESUME = flags.DEFINE_string(
  'resume',
  'auto',
  'What the training starts from. auto: the latest checkpoint in --logdir that '
  'is whole and has not diverged, if there is one; never: the initial weights; '
  'anything else: this checkpoint, by its path without an ending, or the '
  'latest in this folder. Except with auto, what an earlier run has left in '
  '--logdir is moved aside.',
)
_NO_CHECKPOINT = (
  'no checkpoint there; give auto, never, a folder with checkpoints, or the '
  'path of one without its ending, such as run/model.ckpt-100'
)


class Restart:
  """What a training begins with, and goes back to when a ps is lost.

  It begins with what --resume says, and goes back to the latest checkpoint of
  this very training that is whole and gives a finite loss.

  Attributes:
    run: the same in all lives of one training; empty without a logdir.
    is_of_other_run: whether `find` found last what --resume names outside
      the logdir: a run begins there, whose --epochs are still to be made.
  """

  def __init__(
    self,
    logdir: str | None,
    resume: str,
    is_last: IsLast | int,
    on_slice: Callable[[], None] = lambda: None,
  ) -> None:
    """
    Args:
      resume: the value of --resume.
      is_last: whether the training has ended at a checkpoint; or the global
        step at which it ends.
      on_slice: called before each slice of a checkpoint is read.
    """
    self._on_slice = on_slice
    self._logdir = logdir
    self._find_divergence: Callable[[str], str | None] = lambda path: None
    self._resume = urls.expand(resume)
    self._is_last: IsLast = (
      is_last if callable(is_last) else lambda path, step, _: step >= is_last
    )
    self._given: str | None = None
    self._found: str | None = None
    self.run = ''
    self.is_of_other_run = False

  def take(
    self,
    owner: owner_lib.Owner,
    cluster: cluster_lib.Cluster,
    pause: Callable[[float], None],
  ) -> None:
    """Makes this chief the one that writes the log directory.

    Args:
      owner: of the log directory.
      pause: called with seconds between two looks at who has it.

    Raises:
      cli.RunError: another process has it.
    """
    # The previous chief's host may first have to give that chief up.
    patience_secs = cluster.start_timeout_secs if ATTEMPT in os.environ else 0.0
    owner.take(self.is_new_run, patience_secs, pause)
    self.run = owner.run

  @functools.cached_property
  def is_new_run(self) -> bool:
    """Whether this process begins the run that --resume asks for.

    One that its launcher has started again does not, unless the one before it
    was killed before it had moved an earlier run aside.
    """
    if self._resume == 'auto':
      return False
    if ATTEMPT not in os.environ or not self._logdir:
      return True
    return not begin_file.has_begun(self._logdir)

  def check(
    self,
    find_divergence: Callable[[str], str | None],
    images: str,
    flags_of_meaning: Sequence[str],
  ) -> None:
    """Checks --resume; called by the chief, before anything is written.

    Once the run has begun, --resume no longer counts for a task that its
    launcher has started again: it is in the middle of a training.

    Args:
      find_divergence: given the path of a checkpoint, says why a training
        cannot go on from it; see divergence.CheckpointCheck.
      images: what it would learn from, by run_data.describe; a difference from
        the run to go on with is logged.
      flags_of_meaning: the flags that a resumed run must keep.

    Raises:
      cli.UsageError: there is no such checkpoint.
      cli.RunError: it is not whole, or has diverged; or the logdir has a run of
        another model or data set.
    """
    self._find_divergence = find_divergence
    if not self.is_new_run:
      if self._logdir:
        _check_is_same_run(self._logdir, images, flags_of_meaning)
        if self._resume != 'auto':
          self._given = begin_file.read(self._logdir).get('from')
    elif move := self._find_move():
      # It was checked before, and may be at either place by now.
      self._given = move['from']
    elif self._resume != 'never':
      self._given = self._find_given()

  def prepare(self) -> None:
    """Moves aside what is not part of this run, once it owns the logdir.

    Raises:
      cli.RunError: the logdir cannot be written.
    """
    if not self.is_new_run:
      if self._logdir and self._resume == 'auto':
        begin_file.forget_move(self._logdir)
      self._forget_earlier()
    elif self._logdir:
      try:
        if move := self._find_move() or self._begin_move(self._logdir):
          target = os.path.join(self._logdir, move['to'])
          earlier_runs.move_into(target, self._logdir, move['names'])
          self._given = move['from']
        begin_file.write(self._logdir, self._given)
      except OSError as error:
        raise logdirs.not_written(self._logdir, error) from error

  def _find_move(self) -> begin_file.Move | None:
    """Returns the move that the chief before this one did not end."""
    if not self._logdir:
      return None
    return begin_file.find_move(self._logdir, self._resume)

  def _begin_move(self, logdir: str) -> begin_file.Move | None:
    """Notes what is to be moved aside, if anything is; returns it."""
    names = earlier_runs.find_names(logdir, self._given)
    if not names:
      return None
    target = earlier_runs.make_folder(logdir)
    given = self._given
    if given:
      given = earlier_runs.find_moved(given, logdir, target)
    move: begin_file.Move = {
      'resume': self._resume,
      'from': given,
      'names': names,
      'to': os.path.basename(target),
    }
    begin_file.write_move(logdir, move)
    return move

  def write_again(self) -> None:
    """Notes in a new logdir that the run has begun; may raise OSError."""
    if self._logdir and self._resume != 'auto':
      begin_file.write(self._logdir, self._given)

  def _forget_earlier(self) -> None:
    """Moves a run aside that made steps and has no checkpoint to go on from."""
    if not self._logdir or ATTEMPT in os.environ or self._given:
      return
    if checkpoints.list_checkpoints(self._logdir):
      return
    has_best = paths.is_folder(checkpoints.best_dir(self._logdir))
    if has_best or worker_records.read(self._logdir):
      earlier_runs.move(self._logdir)

  def _find_given(self) -> str | None:
    wanted = self._resume
    try:
      is_folder = paths.is_folder(wanted)
    except OSError as error:
      kind = cli.choose_error(error, cli.UsageError)
      raise kind(f'--resume={wanted}: {error.strerror}') from error
    path = self._find_usable(wanted) if is_folder else wanted
    if not path or not checkpoint_reader.is_there(path):
      raise cli.UsageError(f'--resume={wanted}: {_NO_CHECKPOINT}')
    if not is_folder and (fault := self._find_fault(path)):
      raise cli.RunError(f'--resume={path} {fault[0]}: {fault[1]}')
    return path

  def _find_usable(self, folder: str) -> str | None:
    return checkpoints.find_usable(folder, self._find_fault)

  def _find_fault(self, path: str) -> tuple[str, str] | None:
    return checkpoints.find_fault(path, self._find_divergence, self._on_slice)

  def find(self) -> str | None:
    """Returns the checkpoint to restore, or None for the first weights."""
    if not self._found and self._logdir:
      self._found = self._find_usable(self._logdir)
    self.is_of_other_run = bool(
      self._given
      and not self._found
      and not (
        self._logdir and earlier_runs.find_place(self._given, self._logdir)
      )
    )
    return self._found or self._given

  def looks_finished(self) -> bool:
    """Like `is_finished`, by the name of the latest checkpoint, unread."""
    path = checkpoints.find_latest(self._logdir) if self._logdir else None
    step = checkpoints.parse_step(path) if path else None
    if path is None or step is None or self.is_new_run:
      return False
    try:
      return self._is_last(path, step, False)
    except Exception:  # Broken bytes raise errors of many kinds.
      return False  # An earlier one will be used.

  def is_finished(self) -> bool:
    """Whether the latest checkpoint is the end of the training."""
    path = self.find()
    if not path:
      return False
    step = checkpoints.read_step(path)
    return self._is_last(path, step, self.is_of_other_run)

  def describe_end(self) -> str:
    """Returns at which step an earlier run has ended, '' if none has."""
    if not self._logdir or self.is_new_run:
      return ''
    step = logdirs.read_end(self._logdir)
    if step is None and self.looks_finished():
      path = checkpoints.find_latest(self._logdir)
      step = checkpoints.parse_step(path) if path else None
    return '' if step is None else logdirs.describe_end(self._logdir, step)

  def go_on(self) -> None:
    """The training goes on from what was found: the next `find` looks again.

    Later checkpoints were passed over, and are moved aside: the training will
    reach those steps again, by another path.
    """
    if self._found and self._logdir:
      earlier_runs.move_later(self._logdir, self._found)
    self._found = None


def from_flags(
  logdir: str | None,
  is_last: IsLast | int,
  on_slice: Callable[[], None] = lambda: None,
) -> Restart:
  """Returns what --resume asks for."""
  return Restart(logdir, _RESUME.value, is_last, on_slice)


def _check_is_same_run(
  logdir: str, images: str, flags_of_meaning: Sequence[str]
) -> None:
  """Raises cli.RunError if the run to go on with learnt something else."""
  if not checkpoints.list_checkpoints(logdir):
    return
  if changed := run_flags.find_changed(logdir, flags_of_meaning):
    then, now = changed
    raise cli.RunError(
      f'--logdir={logdir} has a run with {then}, but {now} is given: '
      'give the flags it was trained with, another --logdir, or '
      '--resume=never, which moves it aside; to begin a new run from its '
      f'weights, --resume={logdir}'
    )
  # A task that is started again may get its images in another order.
  earlier = run_data.read(logdir)
  if ATTEMPT not in os.environ and earlier not in (None, images):
    _log.info(
      f'--logdir={logdir} has a run that learnt from {earlier}, and'
      f' here are {images}: its files have changed, or --data_dir is another'
    )
