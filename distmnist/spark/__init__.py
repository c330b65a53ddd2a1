"""For Spark programs: `run` trains on the executors, `predict` predicts.

from distmnist import spark
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from distmnist.spark.feed import Feed
  from distmnist.spark.prediction import predict
  from distmnist.spark.training import Options, TaskError, run

# Imported on demand: an executor needs other modules than the driver.
_HOMES = {
  'Feed': 'feed',
  'Options': 'training',
  'TaskError': 'training',
  'predict': 'prediction',
  'run': 'training',
}
__all__ = ['Feed', 'Options', 'TaskError', 'predict', 'run']


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
