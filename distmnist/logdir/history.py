"""What each life of a worker read, wrote and restored: one JSON line per event.

After a run that was disturbed on purpose, a checker reads here whether each
image was read as often as intended, and whether what was restored had been
saved. A line is written whole, in one call, before the program goes on, so what
a killed process did is there as well. It costs a small write per session.run,
and is off by default.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from absl import flags

from distmnist.common import cli, layout
from distmnist.storage import mirror

_HISTORY = flags.DEFINE_bool(
  'history',
  False,
  'Write to LOGDIR/distmnist-files/history, as JSON lines, which batches each '
  'life of a worker took and ran, with the global steps. Needs --logdir.',
)
_FOLDER = 'history'


class History:
  """Appends events of one life of a worker to a file, or does nothing.

  The file is open until the process ends, as that is when the life does.
  """

  def __init__(self, path: str | None = None, **fields: Any) -> None:
    """
    Args:
      path: of the file; None writes nothing.
      fields: what each line begins with, such as worker and life.

    Raises:
      cli.RunError: the file cannot be written.
    """
    self._path = path
    self._fields = fields
    self._file: int | None = None
    if path:
      with self._explaining():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = os.open(
          path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666
        )

  def write(self, event: str, **fields: Any) -> None:
    """Writes one line: `event`, the time in seconds, and `fields`.

    Raises:
      cli.RunError: the line cannot be written.
    """
    if self._file is None:
      return
    line = {**self._fields, 'event': event, 'time': time.time(), **fields}
    with self._explaining():
      os.write(self._file, (json.dumps(line) + '\n').encode())

  @contextlib.contextmanager
  def _explaining(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise cli.choose_error(error)(
        f'history {self._path} cannot be written: {error.strerror}'
      ) from error


def from_flags(logdir: str | None, worker: int, life: str) -> History:
  """Returns the history of this life of a worker."""
  path = None
  if _HISTORY.value and logdir:
    folder = mirror.localize(layout.own_path(logdir, _FOLDER))
    path = os.path.join(folder, f'worker_{worker}_{life}.jsonl')
  return History(path, worker=worker, life=life)


def read(logdir: str) -> list[dict[str, Any]]:
  """Returns the events of all lives, in order of time.

  The last line of a life is left out if the end of that life cut it off.
  """
  events = []
  for path in glob.glob(
    layout.own_path(glob.escape(logdir), f'{_FOLDER}/worker_*.jsonl')
  ):
    with open(path, encoding='utf-8') as file:
      events += [json.loads(x) for x in file if x.endswith('\n')]
  return sorted(events, key=lambda event: event['time'])
