"""Prints the log of a task of a run, and with -f what is added to it.

  python -m distmnist.logs --logdir=logs/run [-f] [TASK]

TASK is the chief by default; else 'ps 0', worker_1 and so on.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from distmnist.common import cli
from distmnist.common.names import CHIEF
from distmnist.logdir import find_run
from distmnist.storage import copies, paths, urls

_FOLLOW = flags.DEFINE_bool(
  'follow',
  False,
  'Keep printing what is added to the log until the launcher of the run has '
  'ended.',
  short_name='f',
)
_FIRST_FLAGS = ('logdir', 'follow')
_LOOK_SECS = 0.2


def main(words: Sequence[str]) -> None:
  """Prints the log of the task that `words` name."""
  task = parse_task(words)
  found = find_run.from_flags()
  if _FOLLOW.value and urls.is_remote(found.logdir):
    raise cli.UsageError(
      f'--follow of {found.logdir}: a log in a store is only as recent as its '
      'last copy; leave --follow out, or follow it where the launcher runs'
    )
  path = find_log(found.logdir, found.state.launcher, task)
  with open(copies.fetch_file(path), 'rb') as log:
    while True:
      found.look()
      # Decided before the last look at the log.
      is_over = not _FOLLOW.value or not found.find_left()
      for data in iter(lambda: log.read(1 << 16), b''):
        sys.stdout.buffer.write(data)
      sys.stdout.buffer.flush()
      if is_over:
        return
      time.sleep(_LOOK_SECS)


def parse_task(words: Sequence[str]) -> str:
  """Returns the name of a task, such as 'ps 0'.

  Args:
    words: what the user has typed, such as ['ps_0'].

  Raises:
    cli.UsageError: it names none.
  """
  typed = ' '.join(words)
  if not typed:
    return CHIEF
  found = re.fullmatch(r'(ps|worker|evaluator)[ _:/]?(\d+)', typed)
  if typed == 'chief':
    return CHIEF
  if not found:
    raise cli.UsageError(
      f'{typed!r} is not a task: expected one such as worker_0, ps_1 or chief'
    )
  return f'{found[1]} {int(found[2])}'


def find_log(logdir: str, launcher: Mapping[str, Any] | None, task: str) -> str:
  """Returns the path of the log of a task.

  Args:
    launcher: the first line of the launcher.

  Raises:
    cli.RunError: there is none.
  """
  folders = [os.path.join(logdir, 'logs')]
  if launcher and launcher.get('logs_dir'):
    folders.insert(0, os.path.join(logdir, launcher['logs_dir']))
  for folder in folders:
    path = os.path.join(folder, f'{task.replace(" ", "_")}.log')
    if paths.exists(path):
      return path
  there = sorted(
    name[: -len('.log')]
    for folder in folders[:1]
    for name in paths.list_names(folder)
    if name.endswith('.log')
  )
  hint = (
    f'there are {", ".join(there)}'
    if there
    else 'a task not started by a launcher of distmnist writes to its own '
    'screen (Kubernetes: kubectl logs)'
  )
  raise cli.RunError(f'no log of {task} in {folders[0]}: {hint}')


def run() -> None:
  cli.run(main, takes_words=True, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
