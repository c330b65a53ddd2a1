"""The flags of a run, as its log directory keeps them.

train.flags has those of the last life. What differed in the lives before is
kept beside it: with what step a change begins, then and now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from distmnist.common import cli, files, help_text, layout
from distmnist.storage import paths

FLAGS = flags.FLAGS
_FLAGS_FILE = 'train.flags'
# The file of --problem, as it was when the run last began.
PROBLEM_FILE = 'problem.py'
# Flags that concern one task alone.
_NOT_KEPT = 'logdir', 'fed_dir'
_CHANGES_FILE = 'flag_changes.json'
# Addresses differ from life to life: their number counts.
_COUNTED = {'ps_hosts': 'num_ps', 'worker_hosts': 'num_workers'}
# What says which task this is, how a life begins and ends, or what a program
# does in place of a training.
_NO_CHANGE = (
  *('job_name', 'task_index', 'report_file', 'download_only'),
  *('stop_grace_secs', 'print_cluster', 'help', 'helpfull'),
)


# Of ours, those that the run of this process does not read.
_unread: set[str] = set()


def leave_out(names: Iterable[str]) -> None:
  """Has `ours` leave out these flags, as the run does not read them."""
  _unread.clear()
  _unread.update(names)


def ours() -> list[flags.Flag]:
  """Returns the flags that distmnist defines.

  Without those of `leave_out`.
  """
  modules = FLAGS.flags_by_module_dict()
  return [
    flag
    for name in sorted(modules)
    if help_text.is_ours(name)
    for flag in modules[name]
    if flag.name not in _unread
  ]


def path_in(logdir: str) -> str:
  """Returns the path of the file of flags in a log directory."""
  return os.path.join(logdir, _FLAGS_FILE)


def write(logdir: str, step: int = 0) -> None:
  """Keeps the flags of this process; `evaluate` then needs none of them.

  Args:
    step: the global step from which on they count.
  """
  # First: whoever is killed in between finds the same changes again.
  if changes := find_changes(logdir):
    kept = read_changes(logdir)
    if not kept or kept[-1]['changes'] != changes:
      kept.append({'step': step, 'changes': changes})
      path = layout.make_own_path(logdir, _CHANGES_FILE)
      with files.replacing(path) as file:
        json.dump({'lives': kept}, file, indent=1)
  with files.replacing(path_in(logdir)) as file:
    file.writelines(
      flag.serialize() + '\n'
      for flag in ours()
      if flag.name not in _NOT_KEPT and flag.value is not None
    )


def read_changes(logdir: str) -> list[dict[str, Any]]:
  """Returns what has changed at each resume, in order.

  Each is {'step': the global step from which on it counts, 'changes': {name:
  [then, now]}}, values as a command line gives them, or None.
  """
  return files.read_dict(layout.own_path(logdir, _CHANGES_FILE)).get(
    'lives', []
  )


def describe_changes(changes: Mapping[str, Sequence[str | None]]) -> str:
  """Returns {name: [then, now]} as a text, --name then -> now, ..."""
  return ', '.join(
    f'--{name} {_show(then)} -> {_show(now)}'
    for name, (then, now) in changes.items()
  )


def _show(value: str | None) -> str:
  return 'none' if value is None else value or "''"


def find_changes(logdir: str) -> dict[str, list[str | None]]:
  """Returns {name: [then, now]}, our flags that differ from those kept.

  Of hosts it is their number that counts. One that was not kept had its
  default. Nothing has changed if nothing was kept.
  """
  try:
    kept = read(logdir)
  except cli.RunError:
    return {}
  changes: dict[str, list[str | None]] = {}
  for flag in ours():
    if flag.name in (*_NOT_KEPT, *_NO_CHANGE):
      continue
    values: list[str | None] = [
      _find_value(words, flag)
      for words in (kept, (flag.serialize() or '').splitlines())
    ]
    if flag.name == 'resume' and {*values} <= {None, 'auto', 'never'}:
      continue  # Only where a run comes from is part of it.
    name = _COUNTED.get(flag.name, flag.name)
    if flag.name in _COUNTED:
      values = [str(len(v.split(','))) if v else '0' for v in values]
    is_new = values[0] is None and flag.value == flag.default
    if values[0] != values[1] and not is_new:
      changes[name] = values
  return changes


def _find_value(words: Iterable[str], flag: flags.Flag) -> str | None:
  """Returns the value that `words` give a flag, None if they do not."""
  found = _choose(words, flag)
  if not found:
    return None
  if flag.boolean:
    return str(found[-1].startswith(f'--{flag.name}')).lower()
  return ','.join(word.partition('=')[2] for word in found)


def _choose(words: Iterable[str], flag: flags.Flag) -> list[str]:
  """Returns those of `words` that set a flag.

  It may take several words, and a Boolean one may begin with `no`.
  """
  keys = {f'--{flag.name}'} | ({f'--no{flag.name}'} if flag.boolean else set())
  return [word for word in words if word.partition('=')[0] in keys]


def are_kept(logdir: str) -> bool:
  """Whether `write` has kept the flags of a run in `logdir`."""
  return paths.exists(path_in(logdir))


def find_changed(logdir: str, names: Iterable[str]) -> tuple[str, str] | None:
  """Returns the first flag of `names` that differs from what `write` kept.

  Args:
    names: one that was not kept had its default, as `write` keeps all but those
      that are None.

  Returns:
    (then, now), such as '--model=cnn' each, or None if none differs or nothing
    was kept.
  """
  try:
    kept = read(logdir)
  except cli.RunError:
    return None
  for name in names:
    flag = FLAGS[name]
    then = _choose(kept, flag)
    now = flag.serialize().splitlines()
    if then != now and (then or flag.value != flag.default):
      none = f'no --{name}'
      return ' '.join(then) or none, ' '.join(now) or none
  return None


def read(logdir: str) -> list[str]:
  """Returns the flags that `write` has kept, as words of a command line.

  Raises:
    cli.RunError: there are none.
  """
  path = path_in(logdir)
  try:
    return paths.read_text(path).splitlines()
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or 'it is damaged'
    raise cli.choose_error(error)(
      f'no run of distmnist.train in --logdir={logdir}: {path} cannot be read '
      f'({reason})'
    ) from error
