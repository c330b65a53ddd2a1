"""Moves what a run has left in a log directory into a folder there."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import tempfile

from distmnist.common import layout
from distmnist.common.names import LAUNCH_ID
from distmnist.logdir import checkpoints, logdirs
from distmnist.storage import paths, urls

_log = logging.getLogger(__name__)

_HISTORY = f'{layout.OWN}/history'

# What the paths of a run's files, within its log directory, begin with; $ is
# the end of a path.
_OF_A_RUN = (
  r'checkpoint$|model\.ckpt|best$|report\.(json|html)$|timeline\.json$|'
  r'train\.flags$|problem\.py$|model\.keras$|'
  rf'{layout.METRICS}/(?!launcher$)|'
  rf'{layout.OWN}/(history|train\.data|problem_before\.py|'
  r'flag_changes\.json)$'
)
# Which of them the other tasks of a launch begin before its chief looks here.
_OF_TASKS = rf'{_HISTORY}$|{layout.METRICS}/(worker|ps|evaluator)_\d+$'


def move_later(logdir: str, path: str) -> None:
  """Moves the checkpoints later than the one at `path` into a folder."""
  found = checkpoints.list_checkpoints(logdir)
  later = found[: found.index(path)]
  if not later:
    return
  target = _make_folder(logdir, 'passed_over_')
  for each in later:
    # The index goes first: what a move cut short leaves is no checkpoint.
    for name in reversed(checkpoints.find_files(each)):
      paths.rename(name, os.path.join(target, os.path.basename(name)))
  _log.info(f'what was passed over is now in {target}')


def move(logdir: str) -> str | None:
  """Moves an earlier run in `logdir` into a folder there.

  What the tasks of this launch have begun to write stays.

  Returns:
    The folder, or None if there was no run.

  Raises:
    cli.RunError: the logdir cannot be written.
  """
  names = find_names(logdir)
  if not names:
    return None
  try:
    target = make_folder(logdir)
    move_into(target, logdir, names)
  except OSError as error:
    raise logdirs.not_written(logdir, error) from error
  return target


def find_names(logdir: str, path: str | None = None) -> list[str]:
  """Returns what an earlier run has left, as paths within `logdir`.

  What the tasks of this launch have begun to write is left out.

  Args:
    path: of the checkpoint that is still needed: its index comes last.
  """
  last = f'{os.path.basename(path)}.index' if path else None
  all_names = [
    os.path.join(folder, name)
    for folder in ('', layout.METRICS, layout.OWN)
    for name in paths.list_names(os.path.join(logdir, folder))
  ]
  names = [name for name in all_names if re.match(_OF_A_RUN, name)]
  if all(re.match(_OF_TASKS, name) for name in names):
    return []  # No chief has been here.
  parts = [part for name in names for part in _list_earlier(logdir, name)]
  return sorted(parts, key=lambda part: (part == last, part))


def make_folder(logdir: str) -> str:
  """Returns the path of a folder to move an earlier run to."""
  return _make_folder(logdir, 'earlier_')


def move_into(target: str, logdir: str, names: list[str]) -> None:
  """Moves what is there of `names`; may be repeated after it was cut short.

  Raises:
    OSError: the logdir cannot be written.
  """
  for name in names:
    source, place = (os.path.join(x, name) for x in (logdir, target))
    # What has come again belongs to the run that begins. A store moves a folder
    # object by object.
    is_moved = not urls.is_remote(logdir) and paths.exists(place)
    if paths.exists(source) and not is_moved:
      paths.make_folders(os.path.dirname(place))
      paths.rename(source, place)
  _log.info(f'the earlier run in {logdir} is now in {target}')


def _list_earlier(logdir: str, name: str) -> list[str]:
  """Returns which paths at or in `name` in `logdir` are not of this launch."""
  if name == _HISTORY:
    files = paths.list_names(os.path.join(logdir, name))
    parts = [os.path.join(name, file) for file in files]
    ours = [p for p in parts if _is_of_launch(os.path.join(logdir, p))]
    return [p for p in parts if p not in ours] if ours else [name]
  if not re.match(_OF_TASKS, name):
    return [name]
  metrics = os.path.join(logdir, name, 'metrics.jsonl')
  return [] if _is_of_launch(metrics) else [name]


def _is_of_launch(path: str) -> bool:
  """Whether the first line of a file of JSON lines names this launch."""
  launch = os.environ.get(LAUNCH_ID)
  with contextlib.suppress(OSError, ValueError, AttributeError):
    if urls.is_remote(path):
      first, _, _ = paths.read_text(path).partition('\n')
    else:
      with open(path, encoding='utf-8') as file:  # It may have millions.
        first = file.readline()
    return bool(launch) and json.loads(first).get('launch') == launch
  return False


def _make_folder(logdir: str, prefix: str) -> str:
  """Returns the path of a new folder in `logdir`."""
  if urls.is_remote(logdir):
    return os.path.join(logdir, f'{prefix}{secrets.token_hex(4)}')
  return tempfile.mkdtemp(prefix=prefix, dir=logdir)


def find_moved(path: str, logdir: str, target: str) -> str:
  """Returns where a checkpoint is now.

  Args:
    logdir: where a run was moved aside.
    target: where `move` has moved it.
  """
  inside = find_place(path, logdir)
  if inside and re.match(_OF_A_RUN, inside.partition('/')[0]):
    return os.path.join(target, inside)
  return path


def find_place(path: str, logdir: str) -> str | None:
  """Returns the path of a checkpoint within `logdir`, or None."""
  folder, name = os.path.split(path)
  place = os.path.join(urls.normalize(folder), name)
  root = urls.normalize(logdir) + '/'
  return place.removeprefix(root) if place.startswith(root) else None
