"""Finds the files of a room by name: the file's name is the flag's value.

`names` lists a package's modules without importing one of them, so that an
enum flag can be defined from it at no cost; `load` imports the module asked
for.
"""

import importlib
import pkgutil


def names(package):
  """Returns the sorted module names of `package`, a dotted name (str)."""
  path = importlib.import_module(package).__path__
  return sorted(module.name for module in pkgutil.iter_modules(path))


def load(package, name):
  """Returns the module `name` of `package`.

  Raises:
    ValueError: no such module; the message lists those that there are.
  """
  known = names(package)
  if name not in known:
    room = package.rsplit('.', 1)[-1]
    raise ValueError(
      f'no {name!r} among the {room}: expected one of {", ".join(known)}'
    )
  return importlib.import_module(f'{package}.{name}')


def load_all(package):
  """Imports every module of `package`, which defines all of their flags."""
  for name in names(package):
    load(package, name)
