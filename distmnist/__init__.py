"""distmnist: classic parameter-server training that starts, ends, survives."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from distmnist.common import names, quiet_import, signals

__version__ = '0.1.0'

# For TensorFlow, if it is imported later, here or in a task: 3 hides the lines
# of its C++ code, as Python reports what goes wrong.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# By default TensorFlow uses oneDNN's convolutions only on processors with
# AVX512; with AVX2, too, they halve the processor time of a step of the cnn.
if os.uname().machine == 'x86_64':
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
quiet_import.watch()


def __getattr__(name: str) -> Callable[..., Any]:
  # Loaded on demand, so that `import distmnist` costs nothing.
  if name in names.CALLS:
    return getattr(importlib.import_module(names.CALLS[name]), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def _is_program() -> bool:
  """Whether this process is one of our programs, as users start them."""
  words, [program] = sys.orig_argv, sys.argv[:1] or ['']
  if program == '-m' and '-m' in words:
    module = words[words.index('-m') + 1]
    return names.PACKAGE in (module, module.rpartition('.')[0])
  return os.path.basename(program).partition('-')[0] == names.PACKAGE


if _is_program() or names.LAUNCH_ID in os.environ:
  # An import would answer Ctrl-C with a traceback, or swallow it, as that of
  # TensorFlow may. A script that a launcher has started gets one, too.
  signals.end_on_ctrl_c()
