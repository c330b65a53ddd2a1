"""The log directory that all workers share: whether it exists, and whose."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile

from absl import flags

from distmnist.common import cli, files, layout
from distmnist.storage import disk, paths, urls

_REPORT_FILE = 'report.json'
_SIGNATURE_FILE = 'chief'
# Written as a test: an empty file can be made on a full disk.
_BLOCK = bytes(4096)

_LOGDIR = flags.DEFINE_string(
  'logdir',
  None,
  'Directory of the run, with checkpoints, summaries and report.json; all '
  'tasks share it. It may be an address of a store: s3://, gs:// or hdfs://. A '
  'training without it writes nothing.',
)


def from_flags() -> str | None:
  """Returns the log directory, or None."""
  return urls.expand(_LOGDIR.value) if _LOGDIR.value else None


def make(logdir: str) -> None:
  """Makes the directory and checks that this process can write there.

  Raises:
    cli.RunError: it cannot be written; cli.PassingError if that may pass.
  """
  if urls.is_remote(logdir):
    return
  try:
    layout.make_own_dir(logdir)
    with tempfile.TemporaryFile(dir=logdir) as file:
      file.write(_BLOCK)
      file.flush()
      os.fsync(file.fileno())
  except OSError as error:
    raise not_written(logdir, error) from error


def not_written(logdir: str, error: OSError) -> cli.RunError:
  """Returns the error to raise, perhaps one that may pass, if a write fails."""
  return cli.choose_error(error)(
    f'--logdir={logdir} cannot be written: '
    f'{files.describe_refusal(error, "choose a directory of your own")}'
  )


def remove_abandoned(logdir: str) -> None:
  """Removes the drafts of files that killed processes left in a run's folders.

  To be called by the one chief that writes there; other tasks may write, too.
  """
  if urls.is_remote(logdir):
    return
  with contextlib.suppress(OSError):
    for folder, names, _ in os.walk(logdir):
      # Not into earlier runs.
      inside = os.path.relpath(folder, logdir)
      if inside not in (os.curdir, layout.METRICS, layout.OWN):
        names.clear()
      disk.remove_abandoned(folder)


def sign(logdir: str, life: str) -> None:
  """Leaves the chief's `life` for the workers that share the folder.

  Below those of earlier chiefs: a worker may know one of them still.
  """
  path = layout.make_own_path(logdir, _SIGNATURE_FILE)
  if urls.is_remote(path):
    paths.write(path, '\n'.join([*_read_lives(logdir), life]).encode())
    return
  # Written in place: on NFS a new file under an old name is seen late.
  with open(path, 'a', encoding='utf-8', opener=files.no_follow) as file:
    file.write(f'{life}\n')


def is_signed(logdir: str, life: str) -> bool:
  """Whether the chief with this `life` is the last that has signed."""
  return _read_lives(logdir)[-1:] == [life]


def was_signed(logdir: str, life: str) -> bool:
  """Whether the chief with this `life` uses, or used, this very folder."""
  return life in _read_lives(logdir)


def _read_lives(logdir: str) -> list[str]:
  path = layout.own_path(logdir, _SIGNATURE_FILE)
  try:
    return paths.read_text(path).splitlines()
  except OSError:
    return []


def sign_time(logdir: str) -> float | None:
  """Returns when a chief last signed, or None if none has."""
  return paths.get_version(layout.own_path(logdir, _SIGNATURE_FILE))


def report_path(logdir: str) -> str:
  return os.path.join(logdir, _REPORT_FILE)


def has_ended(logdir: str) -> bool:
  """Whether the run has written its report, which it does last."""
  return paths.exists(report_path(logdir))


def read_end(logdir: str) -> int | None:
  """Returns the step that the report gives, or None if there is none."""
  try:
    return int(json.loads(paths.read_text(report_path(logdir)))['global_step'])
  except (OSError, ValueError, TypeError, KeyError):
    return None


def describe_end(logdir: str, step: int) -> str:
  """Returns a line for a task that comes when its run has ended."""
  return f'the run in --logdir={logdir} has ended at step {step}'


def remove_report(logdir: str) -> None:
  """Removes the report of an earlier life: the run goes on."""
  paths.remove(report_path(logdir))


def report_time(logdir: str) -> float | None:
  """Returns when the report was written, or None if there is none."""
  return paths.get_version(report_path(logdir))
