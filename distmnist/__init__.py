"""distmnist: classic parameter-server training that starts, ends, survives."""

import importlib

__version__ = '0.1.0'

# Loaded at need: `import distmnist` costs nothing.
_CALLS = {
  'Error': 'distmnist.api.training',
  'Report': 'distmnist.api.training',
  'fit': 'distmnist.api.fit',
  'run': 'distmnist.api.training',
  'start': 'distmnist.api.training',
}

_MOVED = {
  'on_spark': 'from distmnist import spark, then spark.run(...)',
  'spark_predict': 'from distmnist import spark, then spark.predict(...)',
}


def __getattr__(name):
  if name in _CALLS:
    return getattr(importlib.import_module(_CALLS[name]), name)
  if name in _MOVED:
    raise ImportError(f'there is no distmnist.{name} any more: {_MOVED[name]}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
