"""Writes checkpoints whole, syncs them to disk, and drops the oldest.

A checkpoint is written in a folder beside the others, then synced, and gets its
name last. So anything with the name of a checkpoint is whole, and a save that
fails or is cut off touches no earlier one. A checkpoint for a store is written
on this machine and then uploaded, its index last.

The latest checkpoints stay, and what these need: a partial one
(common/partial_names.py) is of no use without its base, so that one stays as
long as it does.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors
from distmnist.common import cli, files, partial_names
from distmnist.logdir import checkpoint_reader, checkpoints
from distmnist.storage import copies, paths, scratch, urls

if TYPE_CHECKING:
  from distmnist.common import owner as owner_lib

_log = logging.getLogger(__name__)

_KEEP_CHECKPOINTS = flags.DEFINE_integer(
  'keep_checkpoints',
  5,
  'How many of the latest checkpoints are kept, besides the best and, with '
  '--save_tables=touched, those that they need.',
  lower_bound=1,
)
_UNFINISHED = '.unfinished_'
# The types of the ops that write files.
_WRITES = 'SaveV2', 'MergeV2Checkpoints'


class SaveError(cli.RunError):
  """A checkpoint could not be written."""


class PassingSaveError(SaveError, cli.PassingError):
  """A checkpoint could not be written now."""


def choose_error(cause: Exception) -> type[SaveError]:
  """Returns the class of the error that reports an exception of a write."""
  return PassingSaveError if cli.is_passing(cause) else SaveError


class Saver(Protocol):
  """What writes the values of a session, such as tables/table_saver.py's."""

  @property
  def base(self) -> str | None:
    """The file's name of the whole checkpoint on which it puts the next one.

    Which then has the rows touched since then; None: that is whole, too.
    """

  def forget_base(self) -> None:
    """Makes the next checkpoint a whole one."""

  def save(self, session: tf.Session, path: str) -> str | None:
    """Writes the checkpoint `path`; returns its base, None if it is whole."""


def make(
  owner: owner_lib.Owner, variables: Sequence[tf.Variable]
) -> CheckpointWriter:
  """Returns the writer of a chief.

  What interrupted saves have left in its log directory is removed.

  Args:
    owner: the chief, of the log directory.
    variables: what a checkpoint holds.

  Raises:
    cli.PassingError: there is no room for a checkpoint.
  """
  check_space(owner.folder, variables)
  writer = CheckpointWriter(owner.folder, _KEEP_CHECKPOINTS.value, owner.check)
  writer.remove_unfinished()
  return writer


class CheckpointWriter:
  """Adds checkpoints to a folder and drops the oldest of them."""

  def __init__(
    self,
    folder: str,
    max_to_keep: int,
    check_owner: Callable[[], None] = lambda: None,
  ) -> None:
    """
    Args:
      folder: made with the first checkpoint.
      max_to_keep: how many stay there, besides what they need.
      check_owner: raises a cli.RunError if another process writes there now;
        called before a checkpoint gets its name.
    """
    self._folder, self._max_to_keep = folder, max_to_keep
    self._check_owner = check_owner
    self._known_paths: set[str] = set()
    # That of each checkpoint that was asked for or written here.
    self._bases: dict[str, str | None] = {}

  def path_of_step(self, step: int) -> str:
    """Returns the path of a step's checkpoint, which need not exist."""
    return checkpoints.path_of_step(self._folder, step)

  def is_saved(self, step: int, may_be_partial: bool = True) -> bool:
    """Whether the folder has this step whole; if so, it stays as it is.

    Args:
      may_be_partial: whether a partial checkpoint with its base counts.
    """
    path = self.path_of_step(step)
    if not checkpoint_reader.is_there(path):
      return False
    if not may_be_partial and self._find_base(path):
      return False
    if path not in self._known_paths and checkpoints.find_damage(path):
      return False
    self._known_paths.add(path)
    return True

  def _find_base(self, path: str) -> str | None:
    """Returns the path of a partial checkpoint's base; None if it is whole."""
    if path not in self._bases:
      self._bases[path] = checkpoint_reader.find_base(path)
    return self._bases[path]

  def save(
    self,
    saver: Saver,
    session: tf.Session,
    step: int,
    may_be_partial: bool = True,
  ) -> None:
    """Writes what `session` holds as the checkpoint of `step`.

    Raises:
      SaveError: the disk is full, or the folder cannot be written any more.
      cli.RunError: another process now owns the folder.
      tf.errors.OpError: a ps is gone.
    """

    def write(path: str) -> str | None:
      base = saver.base and os.path.join(self._folder, saver.base)
      if base and not (may_be_partial and checkpoint_reader.is_there(base)):
        saver.forget_base()
      return saver.save(session, path)

    try:
      self._write(write, step)
    except BaseException:
      saver.forget_base()  # It may not be there.
      raise

  def save_values(
    self, values: Mapping[str, np.ndarray | np.generic], step: int
  ) -> None:
    """Writes whole variables, by name, as the checkpoint of `step`.

    Raises:
      SaveError, cli.RunError: as `save` does.
    """

    def write(path: str) -> str | None:
      _write_values(values, path)
      return partial_names.find_base(values)

    self._write(write, step)

  def _write(self, write: Callable[[str], str | None], step: int) -> None:
    path = self.path_of_step(step)
    is_remote = urls.is_remote(self._folder)
    # A name of our own: nobody else removes or completes it.
    unfinished = os.path.join(
      scratch.folder() if is_remote else self._folder,
      f'{_UNFINISHED}{os.urandom(4).hex()}',
    )
    try:
      os.makedirs(unfinished)
      base = write(checkpoints.path_of_step(unfinished, step))
      if is_remote:
        self._put(unfinished, path)
      else:
        self._move(unfinished, path)
      self._known_paths.add(path)
      self._bases[path] = base and os.path.join(self._folder, base)
      self._drop_oldest(path)
    except tf.errors.OpError as error:
      # A ps that dies during the write also fails the op that writes.
      is_write = error.op is None or error.op.type in _WRITES
      if errors.is_loss(error) or not is_write:
        raise
      raise _make_error(path, error, errors.explain(error)) from error
    except (OSError, ValueError) as error:
      reason = getattr(error, 'strerror', None) or str(error)
      raise _make_error(path, error, reason) from error
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)

  def _make_way(self, path: str) -> None:
    """Removes a partial checkpoint that a whole one is to replace."""
    self._check_owner()
    if self._bases.get(path):
      checkpoints.remove(path)

  def _move(self, unfinished: str, path: str) -> None:
    names = sorted(os.listdir(unfinished), key=checkpoints.is_index)
    for name in names:
      files.sync(os.path.join(unfinished, name))
    self._make_way(path)
    # The index comes last: without it there is no checkpoint.
    for name in names:
      os.replace(
        os.path.join(unfinished, name), os.path.join(self._folder, name)
      )
    files.sync(self._folder)

  def _put(self, unfinished: str, path: str) -> None:
    # This may take long: a process that loses the folder adds no index.
    self._make_way(path)
    copies.upload_folder(
      unfinished, self._folder, checkpoints.is_index, self._check_owner
    )

  def _drop_oldest(self, path: str) -> None:
    """Lists a new checkpoint, and drops those that it replaces."""
    before = [
      p for p in checkpoints.list_checkpoints(self._folder) if p != path
    ]
    latest = [path, *before[: self._max_to_keep - 1]]
    try:
      needed = {*latest, *map(self._find_base, latest)}
    except (cli.PassingError, OSError) as error:
      _log.info(f'{path} is saved, and no older one is removed yet: {error}')
      needed = {path, *before}
    self._list([p for p in [path, *before] if p in needed])
    for old in before:
      if old not in needed:
        with contextlib.suppress(OSError):
          checkpoints.remove(old)

  def _list(self, paths: list[str]) -> None:
    """Writes TensorFlow's list of checkpoints, `paths`, latest first."""
    # Names alone: the folder may be moved.
    names = [os.path.basename(path) for path in paths]
    lines = [f'model_checkpoint_path: "{names[0]}"']
    lines += [f'all_model_checkpoint_paths: "{n}"' for n in reversed(names)]
    with files.replacing(os.path.join(self._folder, 'checkpoint')) as file:
      file.write('\n'.join(lines) + '\n')
    if not urls.is_remote(self._folder):
      files.sync(self._folder)

  def remove_unfinished(self) -> None:
    """Removes what interrupted saves have left.

    To be called by the one process that may write there.
    """
    if not urls.is_remote(self._folder):
      _remove_unfinished(self._folder)
    _remove_without_index(self._folder)


def _make_error(path: str, cause: Exception, reason: str) -> SaveError:
  return choose_error(cause)(
    f'cannot write checkpoint {path}: {reason}; {files.advise(reason)}; '
    'the checkpoints before it are untouched'
  )


def _write_values(
  values: Mapping[str, np.ndarray | np.generic], path: str
) -> None:
  names = sorted(values)
  with tf.Graph().as_default(), tf.device('/cpu:0'):
    fed = [tf.placeholder(values[name].dtype) for name in names]
    op = tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=names,
      shape_and_slices=[''] * len(names),
      tensors=fed,
    )
    with tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      session.run(op, dict(zip(fed, (values[n] for n in names), strict=True)))


def _remove_unfinished(folder: str) -> None:
  folder = glob.escape(folder)
  for path in glob.glob(f'{folder}/{_UNFINISHED}*'):
    shutil.rmtree(path, ignore_errors=True)
  for path in glob.glob(f'{folder}/model.ckpt-*.tempstate*'):
    with contextlib.suppress(OSError):
      os.remove(path)


def _remove_without_index(folder: str) -> None:
  names = paths.list_names(folder)
  for name in names:
    stem = name.partition('.data-')[0]
    is_data = name.startswith('model.ckpt-') and stem != name
    if is_data and f'{stem}.index' not in names:
      with contextlib.suppress(OSError):
        paths.remove(os.path.join(folder, name))


def check_space(logdir: str, variables: Sequence[tf.Variable]) -> None:
  """Checks that a checkpoint of `variables` fits on the disk.

  One for a store is written on this machine first.

  Raises:
    cli.PassingError: it does not.
  """
  needed = sum(v.shape.num_elements() * v.dtype.size for v in variables)
  folder = scratch.folder() if urls.is_remote(logdir) else logdir
  free = shutil.disk_usage(folder).free
  if free < needed:
    raise cli.PassingError(
      f'--logdir={folder}: {free / 1e6:,.1f} MB are free, and one checkpoint '
      f'takes {needed / 1e6:,.1f} MB; make room, or give another --logdir'
    )
