"""Writes checkpoints whole, syncs them to disk, and drops the oldest.

A checkpoint is written in a folder beside the others, then synced, and gets its
name last. So anything with the name of a checkpoint is whole, and a save that
fails or is cut off touches no earlier one. A checkpoint for a store is written
on this machine and then uploaded, its index last.
"""

import contextlib
import glob
import os
import shutil

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors
from distmnist.common import cli, files
from distmnist.logdir import checkpoint_reader, checkpoints, retention
from distmnist.storage import copies, paths, scratch, urls

KEEP_CHECKPOINTS = flags.DEFINE_integer(
  'keep_checkpoints',
  5,
  'How many of the latest checkpoints are kept, besides the best and, with '
  '--save_tables=touched, those that they need.',
  lower_bound=1,
)
_UNFINISHED = '.unfinished_'


class SaveError(cli.RunError):
  """A checkpoint could not be written."""


class PassingSaveError(SaveError, cli.PassingError):
  """A checkpoint could not be written now."""


def choose_error(cause):
  """Returns the class of SaveError for an exception of a write."""
  return cli.choose_error(cause, SaveError, PassingSaveError)


class CheckpointWriter:
  """Adds checkpoints to a folder and drops the oldest of them."""

  def __init__(self, folder, max_to_keep, check_owner=lambda: None):
    """
    Args:
      folder: str; made with the first checkpoint.
      max_to_keep: int, how many stay there.
      check_owner: callable, raises a cli.RunError if another process writes
        there now; called before a checkpoint gets its name.
    """
    self._folder = folder
    self._kept = retention.KeptCheckpoints(folder, max_to_keep)
    self._check_owner = check_owner
    self._known_paths = set()

  def path_of_step(self, step):
    """Returns the path (str) of a step's checkpoint, which need not exist."""
    return checkpoints.path_of_step(self._folder, step)

  def is_saved(self, step, may_be_partial=True):
    """Whether the folder has this step whole; if so, it stays as it is.

    Args:
      step: int.
      may_be_partial: bool, whether a partial checkpoint with its base counts.
    """
    path = self.path_of_step(step)
    if not checkpoint_reader.is_there(path):
      return False
    if not may_be_partial and self._kept.find_base(path):
      return False
    if path not in self._known_paths and checkpoints.find_damage(path):
      return False
    self._known_paths.add(path)
    return True

  def save(self, saver, session, step, may_be_partial=True):
    """Writes what `session` holds, as `saver` (tf.train.Saver) does.

    Args:
      saver: tf.train.Saver, or a table_saver.TableSaver, which may leave out
        what has not changed since an earlier checkpoint.
      session: tf.Session.
      step: int.
      may_be_partial: bool, whether it may do so.

    Raises:
      SaveError: the disk is full, or the folder cannot be written any more.
      cli.RunError: another process now owns the folder.
      tf.errors.OpError: a ps is gone.
    """

    def write(prefix):
      saver.save(
        session, prefix, step, write_meta_graph=False, write_state=False
      )

    with _following_base(saver, self._folder, may_be_partial) as has_base:
      self._write(write, step, has_base)

  def save_values(self, values, step):
    """Writes {name: array}, whole variables, as the checkpoint of `step`.

    Raises:
      SaveError, cli.RunError: as `save` does.
    """

    def write(prefix):
      _write_values(values, f'{prefix}-{step}')

    self._write(write, step)

  def _write(self, write, step, may_be_partial=True):
    path = self.path_of_step(step)
    is_remote = urls.is_remote(self._folder)
    # A name of our own: nobody else removes or completes it.
    unfinished = os.path.join(
      scratch.folder() if is_remote else self._folder,
      f'{_UNFINISHED}{os.urandom(4).hex()}',
    )
    try:
      os.makedirs(unfinished)
      write(checkpoints.prefix(unfinished))
      self._publish(unfinished, path, may_be_partial)
    except (tf.errors.OpError, OSError, ValueError) as error:
      if isinstance(error, tf.errors.OpError):
        # A ps that dies during the write also fails the op that writes.
        is_write = error.op is None or error.op.type == 'SaveV2'
        if errors.is_loss(error) or not is_write:
          raise
        reason = errors.explain(error)
      else:
        reason = getattr(error, 'strerror', None) or str(error)
      raise choose_error(error)(
        f'cannot write checkpoint {path}: {reason}; {files.advise(reason)}; '
        'the checkpoints before it are untouched'
      ) from error
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)

  def _publish(self, unfinished, path, may_be_partial):
    """Gives the files their names, lists them, and drops the oldest."""
    if urls.is_remote(self._folder):
      self._put(unfinished, path)
    else:
      self._move(unfinished, path)
    self._known_paths.add(path)
    self._kept.add(path, may_be_partial)

  def _make_way(self, path):
    """Removes a partial checkpoint that a whole one is to replace."""
    self._check_owner()
    if self._kept.is_partial(path):
      checkpoints.remove(path)

  def _move(self, unfinished, path):
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

  def _put(self, unfinished, path):
    # This may take long: a process that loses the folder adds no index.
    self._make_way(path)
    copies.upload_folder(
      unfinished, self._folder, checkpoints.is_index, self._check_owner
    )

  def remove_unfinished(self):
    """Removes what interrupted saves have left.

    To be called by the one process that may write there.
    """
    if not urls.is_remote(self._folder):
      _remove_unfinished(self._folder)
    _remove_without_index(self._folder)


@contextlib.contextmanager
def _following_base(saver, folder, may_be_partial):
  """The context of a save; `saver` forgets a base on which it cannot build.

  Yields whether it has a base.
  """
  touched = getattr(saver, 'touched', None)
  if touched and touched.base:
    base = os.path.join(folder, touched.base)
    if not (may_be_partial and checkpoint_reader.is_there(base)):
      touched.forget_base()
  try:
    yield bool(touched and touched.base)
  except BaseException:
    if touched:
      touched.forget_base()
    raise


def _write_values(values, path):
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


def _remove_unfinished(folder):
  folder = glob.escape(folder)
  for path in glob.glob(f'{folder}/{_UNFINISHED}*'):
    shutil.rmtree(path, ignore_errors=True)
  for path in glob.glob(f'{folder}/model.ckpt-*.tempstate*'):
    with contextlib.suppress(OSError):
      os.remove(path)


def _remove_without_index(folder):
  names = paths.list_names(folder)
  for name in names:
    stem = name.partition('.data-')[0]
    is_data = name.startswith('model.ckpt-') and stem != name
    if is_data and f'{stem}.index' not in names:
      with contextlib.suppress(OSError):
        paths.remove(os.path.join(folder, name))


def check_space(logdir, variables):
  """Checks that a checkpoint of `variables` (list) fits on the disk.

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
