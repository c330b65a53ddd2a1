"""Which launch has begun a run that --resume asked for, and from what.

A chief that is killed and started again learns here whether the one before it
had done what --resume says. Before an earlier run is moved aside, the file says
what is moved where, and what the new run begins with: whoever is killed amid
the move, the next one completes it.
"""

from __future__ import annotations

import json
import os
from typing import Any, TypedDict

from distmnist.common import files, layout
from distmnist.common.names import LAUNCH_ID
from distmnist.storage import paths

_FILE = 'begin.json'

# What is about to be moved aside: for which value of --resume; the path, after
# the move, of the checkpoint that the run begins with; which paths in the log
# directory, in this order; into which folder there.
Move = TypedDict(
  'Move', {'resume': str, 'from': str | None, 'names': list[str], 'to': str}
)


def write(logdir: str, path: str | None) -> None:
  """Notes that this launch has begun its run, and no move is left to do.

  Without a launcher no file is left.

  Args:
    path: of the checkpoint that it begins with; None for the first weights.

  Raises:
    OSError: the file cannot be written.
  """
  launch = os.environ.get(LAUNCH_ID)
  if launch:
    _write(logdir, {'launch': launch, 'from': path})
    return
  # Nobody starts this process again.
  paths.remove(layout.own_path(logdir, _FILE))


def write_move(logdir: str, move: Move) -> None:
  """Notes what is about to be moved aside.

  Raises:
    OSError: the file cannot be written.
  """
  _write(logdir, {'move': move})


def _write(logdir: str, found: dict[str, Any]) -> None:
  with files.replacing(layout.make_own_path(logdir, _FILE)) as file:
    json.dump(found, file)


def forget_move(logdir: str) -> None:
  """Drops a move that was cut short: the run goes on with what is left."""
  if read(logdir).get('move'):
    paths.remove(layout.own_path(logdir, _FILE))


def find_move(logdir: str, resume: str) -> Move | None:
  """Returns the move that was cut short; one for another --resume is none."""
  move = read(logdir).get('move')
  return move if move and move.get('resume') == resume else None


def read(logdir: str) -> dict[str, Any]:
  """Returns {'launch': ..., 'from': path} as written; {} if nothing was."""
  return files.read_dict(layout.own_path(logdir, _FILE))


def has_begun(logdir: str) -> bool:
  """Whether this launch has written the file; True if no launch is known."""
  launch = os.environ.get(LAUNCH_ID)
  return not launch or read(logdir).get('launch') == launch
