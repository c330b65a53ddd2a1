"""Finds the modules of a room by name: a file's name is the flag's value.

Other packages add to a room by entry points. In the group with the room's
dotted name, such as distmnist.strategies, an entry point has a name and a
module:

  [project.entry-points."distmnist.strategies"]
  elastic = "their_package.elastic"

`find` lists the modules without importing any, so that an enum flag can be
defined from them at no cost; `load` imports the module asked for.

A module of another package that cannot be imported ends every program in one
line: its flags would otherwise be unknown, for no visible reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import pkgutil
import traceback
import types

from distmnist.common import cli, command_line, help_text
from distmnist.common.names import PACKAGE


def find(package: str) -> dict[str, str]:
  """Returns {name: dotted name of the module} of a room, sorted by name.

  If several modules share a name, it is the room's own or the first that was
  found; `load` refuses the name.

  Args:
    package: the dotted name of the room.
  """
  return {name: list(found)[0] for name, found in _find_all(package).items()}


@functools.cache
def _find_all(package: str) -> dict[str, dict[str, str]]:
  """Returns {name: {dotted name of a module: who adds it}}, sorted by name."""
  path = importlib.import_module(package).__path__
  found = {
    m.name: {f'{package}.{m.name}': PACKAGE} for m in pkgutil.iter_modules(path)
  }
  for entry in importlib.metadata.entry_points(group=package):
    whose = entry.dist.name if entry.dist else 'an installed package'
    found.setdefault(entry.name, {}).setdefault(entry.module, whose)
  return dict(sorted(found.items()))


def names(package: str) -> list[str]:
  """Returns the sorted names of a room; see `find`."""
  return list(find(package))


def load(package: str, name: str) -> types.ModuleType:
  """Returns the module `name` of `package`.

  Raises:
    ValueError: no such module; the message lists those that exist.
    cli.UsageError: several packages have a module of this name, or the module
      of another package cannot be imported.
  """
  known = find(package)
  if name not in known:
    room = package.rsplit('.', 1)[-1]
    raise ValueError(
      f'no {name!r} among the {room}: expected one of {", ".join(known)}'
    )
  check_is_one(package, name)
  return _import(package, known[name])


def check_is_one(package: str, name: str) -> None:
  """Raises cli.UsageError if several modules of a room have this name."""
  found = _find_all(package).get(name, {})
  if len(found) > 1:
    room = package.rsplit('.', 1)[-1]
    several = ' and '.join(f'{m} (of {whose})' for m, whose in found.items())
    raise cli.UsageError(
      f'{name!r} is the name of {len(found)} modules among the {room}: '
      f'{several}: uninstall all but one, or rename one'
    )


def load_all(package: str) -> None:
  """Imports every module of `package`, which defines all of their flags.

  One of another package that cannot be imported is reported when the flags are
  parsed, where a program can say it in one line.
  """
  for module in find(package).values():
    try:
      _import(package, module)
    except cli.UsageError as error:
      command_line.import_errors.append(error)


def explain(module: str, error: BaseException | None) -> cli.UsageError:
  """Returns a cli.UsageError for a module that cannot be imported.

  Args:
    module: the dotted name of another package's module.
    error: what was raised; None if there is no such module.
  """
  place, reason = '', 'no such module'
  if error:
    text = getattr(error, 'msg', None) or str(error) or 'no reason given'
    reason = f'{type(error).__name__}: {text.splitlines()[0]}'
    frames = traceback.extract_tb(error.__traceback__)
    wanted = f'{module.rpartition(".")[2]}.py'
    lines = [f.lineno for f in frames if f.filename.endswith(f'/{wanted}')]
    if isinstance(error, SyntaxError) and error.filename:
      place = f'{os.path.basename(error.filename)}:{error.lineno}: '
    elif lines:
      place = f'{wanted}:{lines[-1]}: '
  return cli.UsageError(
    f'the module {module}, which an installed package adds to distmnist, '
    f'cannot be imported: {place}{reason}: mend it, or uninstall its package'
  )


def _import(package: str, module: str) -> types.ModuleType:
  help_text.add_ours(module)
  try:
    return importlib.import_module(module)
  except (Exception, SystemExit) as error:
    if module.startswith(f'{package}.'):
      raise
    raise explain(module, error) from error
