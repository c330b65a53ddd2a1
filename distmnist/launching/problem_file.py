"""The file of --problem, as a launcher sends it along with each task.

This way the other hosts need not have it, and a job that waits in a queue runs
the file as it was when submitted. A task reads it by common/sent_file.py.
"""

from __future__ import annotations

import os
import posixpath

from distmnist.common import cli, sent_file
from distmnist.common.names import SENT_FILE

# Linux takes no more than 128 KiB in a variable.
_MAX_PACKED = 100_000


def read(named: str | None) -> bytes | None:
  """Returns the bytes of the file that --problem names, or None.

  Args:
    named: the value of the flag, or None. A module given by its dotted name is
      not sent: it must be installed on each host.

  Raises:
    cli.UsageError: there is no such file, or it is too large.
  """
  if not named or not named.endswith('.py'):
    return None
  try:
    with open(os.path.expanduser(named), 'rb') as file:
      source = file.read()
  except OSError as error:
    raise cli.UsageError(
      f'--problem={named} cannot be read: {error.strerror}'
    ) from error
  if len(sent_file.pack(named, source)) > _MAX_PACKED:
    raise cli.UsageError(
      f'--problem={named} has {len(source):,} bytes, too many to send along '
      'with each task: make it a module that is installed on each host'
    )
  return source


def make_flags(named: str | None, folder: str) -> tuple[str, ...]:
  """Returns the flags for tasks that have the file in a folder; see `read`."""
  if not named or not named.endswith('.py'):
    return ()
  return (f'--problem={posixpath.join(folder, posixpath.basename(named))}',)


def make_env(named: str | None) -> tuple[tuple[str, str], ...]:
  """Returns the variables that send the file; see `read`."""
  if named is None or (source := read(named)) is None:
    return ()
  return ((SENT_FILE, sent_file.pack(named, source)),)
