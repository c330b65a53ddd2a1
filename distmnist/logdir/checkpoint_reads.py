"""Reads of checkpoint files: what is damage, and what is tried again.

A checkpoint is damaged if a checksum, a truncation or an absence says so. Any
other failure (EIO, ESTALE, a right that is missing for a while) says nothing
about the checkpoint, which may be whole: it is read again for half a minute,
and then the task ends, and leaves all checkpoints where they are. All that
reads checkpoints goes through this module.
"""

import contextlib
import errno
import logging
import os
import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.storage import retries, urls

_log = logging.getLogger(__name__)

_DAMAGE = (
  *(tf.errors.DataLossError, tf.errors.OutOfRangeError),
  tf.errors.NotFoundError,
)
# What broken bytes raise in Python: too few of them is an IndexError.
_BROKEN = IndexError, ValueError, TypeError, KeyError, NotImplementedError
_OF_THE_SYSTEM = {os.strerror(number) for number in errno.errorcode}
_ABSENT = os.strerror(errno.ENOENT)


class DamageError(cli.RunError):
  """A checkpoint is not as it was written."""


def open_reader(path):
  """Returns the tf.train.CheckpointReader of a checkpoint on this machine.

  To be called within `trying`, and so are its methods.
  """
  _wait_for_disk(path)
  return tf.train.load_checkpoint(path)


def _wait_for_disk(path):
  """Returns once the disk gives what the reader begins with.

  The reader holds Python's lock: while a disk does not answer it, no thread of
  this process could say so, or give it up.
  """
  folder, name = os.path.split(path)
  # The reader says more of a folder or a file that is missing.
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    for other in os.listdir(folder or os.curdir):
      if other.startswith(f'{name}.'):
        with open(os.path.join(folder, other), 'rb') as file:
          file.read(None if other.endswith('.index') else 1)


def trying(path, read, in_session=False):
  """Returns read(), which is called again while its failure may pass.

  Args:
    path: str, of the checkpoint.
    read: callable, reads it.
    in_session: bool, whether it does so by ops of a session that may fail for
      other reasons; such an error is raised as it is.

  Raises:
    DamageError: the checkpoint is not as it was written.
    cli.PassingError: it cannot be read; nobody knows whether it is whole.
  """
  for wait_secs in (*retries.WAITS_SECS, None):
    try:
      return read()
    except (cli.RunError, cli.UsageError, MemoryError):
      raise
    except Exception as error:
      if in_session and not _is_of_read(error):
        raise
      reason = explain(error)
      if is_damage(error):
        raise DamageError(
          f'checkpoint {path} cannot be read: {reason}'
        ) from error
      # A request to a store was repeated before; see storage/retries.py.
      is_of_store = urls.is_remote(str(getattr(error, 'filename', '')))
      if wait_secs is None or is_of_store:
        raise cli.PassingError(
          f'checkpoint {path} cannot be read: {reason}; it may be whole, and '
          'is left as it is'
        ) from error
    _log.info(
      f'checkpoint {path} cannot be read: {reason}; trying again in '
      f'{wait_secs:g} s'
    )
    time.sleep(wait_secs)
  return None


def is_damage(error):
  """Whether an exception of a read says that the files are not as written."""
  said = _find_words_of_the_system(error)
  if said:
    return said == _ABSENT
  if not isinstance(error, tf.errors.OpError):
    return isinstance(error, _BROKEN)
  # The reader loses the kind of an error: only a checksum's has no words of
  # the system.
  is_of_reader = type(error) is tf.errors.OpError
  return isinstance(error, _DAMAGE) or (
    is_of_reader and not cli.is_passing(error)
  )


def explain(error):
  """Returns the reason (str) of an exception of a read, in one line."""
  if isinstance(error, DamageError) and error.__cause__:
    error = error.__cause__
  if isinstance(error, tf.errors.OpError):
    return errors.explain(error)
  text = getattr(error, 'strerror', None) or str(error) or type(error).__name__
  return text.splitlines()[0]


def _is_of_read(error):
  """Whether an op that reads a checkpoint has failed, by itself."""
  if not isinstance(error, tf.errors.OpError):
    return False
  if _find_words_of_the_system(error):
    return True
  is_of_op = error.op is not None and error.op.type == 'RestoreV2'
  return is_of_op and not errors.is_loss(error)


def _find_words_of_the_system(error):
  """Returns the system's words (str) for a failed call on a file, or None."""
  if isinstance(error, OSError):
    return error.strerror
  if not isinstance(error, tf.errors.OpError):
    return None
  # TensorFlow says 'PATH; WORDS', with more lines, or after a colon more words.
  for line in error.message.splitlines():
    path, _, words = line.rpartition('; ')
    words = words.partition(':')[0]
    if '/' in path and words in _OF_THE_SYSTEM:
      return words
  return None
