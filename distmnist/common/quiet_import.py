"""The import of TensorFlow, without what it prints before a log level applies.

That is a few lines about oneDNN and CUDA, which its libraries write to the
descriptor of stderr as they are loaded: no setting hides them. `import
distmnist` watches for the first import of TensorFlow, by whomever, and sends
that descriptor nowhere while it lasts.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

_NAME = 'tensorflow'
# The import takes some seconds, and as many minutes on a machine that is full.
_LINE_SECS = 20.0


def watch() -> None:
  """Makes the first import of TensorFlow a quiet one, if it is yet to come."""
  if _NAME not in sys.modules:
    sys.meta_path.insert(0, _Finder())


class _Finder:
  """A finder of modules (sys.meta_path) that finds TensorFlow, once."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != _NAME or self not in sys.meta_path:
      return None
    sys.meta_path.remove(self)
    from importlib import util  # noqa: PLC0415

    spec = util.find_spec(name)
    if spec and spec.loader:
      spec.loader = _Loader(spec.loader)
    return spec


class _Loader:
  def __init__(self, loader: Any):
    self._loader = loader

  def create_module(self, spec: Any) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: Any) -> None:
    # Later questions, about files of the package, are for its own loader.
    module.__spec__.loader = module.__loader__ = self._loader
    with _quiet():
      self._loader.exec_module(module)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Redirects stderr's descriptor to os.devnull in the block."""
  import threading  # noqa: PLC0415

  from distmnist.common import output  # noqa: PLC0415

  output.fill_gaps()
  kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  is_done = threading.Event()
  teller = threading.Thread(target=_tell, args=(kept, is_done))
  teller.start()
  os.dup2(nowhere, 2)
  try:
    yield
  finally:
    is_done.set()
    teller.join()  # A fork server forks after this.
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)


def _tell(stderr: int, is_done: Any) -> None:
  """Says now and then that the import goes on: a full machine, a slow disk.

  Args:
    stderr: the descriptor to write to.
    is_done: threading.Event, which ends it.
  """
  import time  # noqa: PLC0415

  begin = time.monotonic()
  while not is_done.wait(_LINE_SECS):
    secs = time.monotonic() - begin
    line = f'TensorFlow has been loading for {secs:.0f} s\n'
    with contextlib.suppress(OSError):
      os.write(stderr, line.encode())
