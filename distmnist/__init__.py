"""distmnist: classic parameter-server training that starts, ends, survives."""

__version__ = '0.1.0'

_MOVED = {
  'on_spark': 'from distmnist import spark, then spark.run(...)',
  'spark_predict': 'from distmnist import spark, then spark.predict(...)',
}


def __getattr__(name):
  if name in _MOVED:
    raise ImportError(f'there is no distmnist.{name} any more: {_MOVED[name]}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
