"""Finds the files of a room by name: the file's name is the flag's value.

Other packages add to a room by entry points. In the group of the room's dotted
name, such as distmnist.strategies, an entry point is a name and a module:

  [project.entry-points."distmnist.strategies"]
  elastic = "their_package.elastic"

`find` lists what there is without importing any of it, so that an enum flag can
be defined from it at no cost; `load` imports the module asked for.
"""

import functools
import importlib
import importlib.metadata
import pkgutil

from distmnist.common import help_text


@functools.cache
def find(package):
  """Returns {name: dotted name of the module} of a room, sorted by name.

  Args:
    package: str, the dotted name of the room.

  Raises:
    ImportError: another package adds a name that is taken.
  """
  path = importlib.import_module(package).__path__
  found = {m.name: f'{package}.{m.name}' for m in pkgutil.iter_modules(path)}
  for entry in importlib.metadata.entry_points(group=package):
    if found.setdefault(entry.name, entry.module) != entry.module:
      raise ImportError(
        f'{entry.dist.name} adds {entry.name!r} to {package}, which has it as '
        f'{found[entry.name]}: uninstall it, or have it take another name'
      )
  return dict(sorted(found.items()))


def names(package):
  """Returns the sorted names of a room, a list; see `find`."""
  return list(find(package))


def load(package, name):
  """Returns the module `name` of `package`.

  Raises:
    ValueError: no such module; the message lists those that there are.
  """
  known = find(package)
  if name not in known:
    room = package.rsplit('.', 1)[-1]
    raise ValueError(
      f'no {name!r} among the {room}: expected one of {", ".join(known)}'
    )
  help_text.add_ours(known[name])
  return importlib.import_module(known[name])


def load_all(package):
  """Imports every module of `package`, which defines all of their flags."""
  for name in find(package):
    load(package, name)
