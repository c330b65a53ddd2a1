"""The log directory, which all workers share: that it is there, and whose."""

import contextlib
import os
import tempfile

from absl import flags

from distmnist.common import cli, files

_REPORT_FILE = 'report.json'
_SIGNATURE_FILE = 'chief'
_LIVES = 'lives'

_LOGDIR = flags.DEFINE_string(
  'logdir',
  None,
  'Directory for checkpoints, summaries and report.json; all workers share it. '
  'Without it nothing is written.',
)


def from_flags():
  """Returns the log directory, or None."""
  return os.path.expanduser(_LOGDIR.value) if _LOGDIR.value else None


def make(logdir):
  """Makes the directory and checks that this process can write there.

  Raises:
    cli.RunError: it cannot be written.
  """
  try:
    os.makedirs(logdir, exist_ok=True)
    with tempfile.TemporaryFile(dir=logdir):
      pass
  except OSError as error:
    raise cli.RunError(
      f'--logdir={logdir} cannot be written: {error.strerror}; choose a '
      'directory of your own'
    ) from error


def sign(logdir, life):
  """Leaves the chief's `life`, a str, for the workers that share the folder."""
  path = os.path.join(logdir, _SIGNATURE_FILE)
  # Written in place: on NFS a new file under an old name is seen late.
  with open(path, 'w', encoding='utf-8', opener=files.no_follow) as file:
    file.write(life)


def is_signed(logdir, life):
  """Whether the chief with this `life` has this very folder."""
  try:
    with open(os.path.join(logdir, _SIGNATURE_FILE), encoding='utf-8') as f:
      return f.read() == life
  except OSError:
    return False


def lives_dir(logdir):
  """Where each process of the run keeps what it has done (logdir/lives.py)."""
  return os.path.join(logdir, _LIVES)


def report_path(logdir):
  return os.path.join(logdir, _REPORT_FILE)


def has_ended(logdir):
  """Whether the run has written its report, which it does last."""
  return os.path.exists(report_path(logdir))


def remove_report(logdir):
  """Removes the report of an earlier life: the run goes on."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(report_path(logdir))


def report_time(logdir):
  """Returns when the report was written, an int, or None if there is none."""
  try:
    return os.stat(report_path(logdir)).st_mtime_ns
  except OSError:
    return None
