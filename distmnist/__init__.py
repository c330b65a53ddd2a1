"""distmnist: classic parameter-server training that starts, ends, survives."""

import importlib

from distmnist.common import names

__version__ = '0.1.0'


_MOVED = {
  'on_spark': 'from distmnist import spark, then spark.run(...)',
  'spark_predict': 'from distmnist import spark, then spark.predict(...)',
}


def __getattr__(name):
  # Loaded on demand, so that `import distmnist` costs nothing.
  if name in names.CALLS:
    return getattr(importlib.import_module(names.CALLS[name]), name)
  if name in _MOVED:
    raise ImportError(f'there is no distmnist.{name} any more: {_MOVED[name]}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
