"""The import of TensorFlow, without what it prints before a log level applies.

That is a few lines about oneDNN and CUDA, which its libraries write to the
descriptor of stderr as they are loaded: no setting hides them. `import
distmnist` watches for the first import of TensorFlow, by whomever, and keeps
what is written to that descriptor while it lasts; if the import fails, it is
printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  import threading

_NAME = 'tensorflow'
# The import takes some seconds, and as many minutes on a machine that is full.
_LINE_SECS = 20.0


def watch() -> None:
  """Makes the first import of TensorFlow a quiet one, if it is yet to come."""
  if _NAME not in sys.modules:
    sys.meta_path.insert(0, _Finder())


class _Finder:
  """A finder of modules (sys.meta_path) that finds TensorFlow.

  It is there until TensorFlow is imported: many only ask whether there is one.
  """

  def __init__(self) -> None:
    self._is_asking = False

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != _NAME or self._is_asking:
      return None
    from importlib import util  # noqa: PLC0415

    self._is_asking = True
    try:
      spec = util.find_spec(name)
    finally:
      self._is_asking = False
    if spec and spec.loader:
      # A loader by its methods: importlib.abc would take time at each start.
      spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
    return spec


class _Loader:
  """TensorFlow's own loader, but that the import is quiet."""

  def __init__(self, loader: Any, finder: _Finder) -> None:
    self._loader = loader
    self._finder = finder

  def __getattr__(self, name: str) -> Any:
    return getattr(self._loader, name)

  def create_module(self, spec: Any) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: Any) -> None:
    if self._finder in sys.meta_path:
      sys.meta_path.remove(self._finder)
    # Later questions, about files of the package, are for its own loader.
    module.__spec__.loader = module.__loader__ = self._loader
    with _quiet():
      self._loader.exec_module(module)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps what the block writes to stderr's descriptor, for an error.

  If it ends the process (an instruction that the processor lacks), at least
  Python's own lines on that are on stderr.
  """
  import faulthandler  # noqa: PLC0415
  import threading  # noqa: PLC0415

  from distmnist.common import output  # noqa: PLC0415

  output.fill_gaps()
  stderr, kept = os.dup(2), os.memfd_create('stderr')
  is_done = threading.Event()
  teller = threading.Thread(target=_tell, args=(stderr, is_done))
  teller.start()
  if is_ours := not faulthandler.is_enabled():
    faulthandler.enable(stderr)
  os.dup2(kept, 2)
  try:
    yield
  except Exception:
    with (
      contextlib.suppress(OSError),
      open(stderr, 'wb', closefd=False) as file,
    ):
      file.write(os.pread(kept, os.fstat(kept).st_size, 0))
    raise
  finally:
    is_done.set()
    teller.join()  # A fork server forks after this.
    os.dup2(stderr, 2)
    if is_ours:
      faulthandler.disable()
    os.close(stderr)
    os.close(kept)


def _tell(stderr: int, is_done: threading.Event) -> None:
  """Says now and then that the import goes on: a full machine, a slow disk.

  Args:
    stderr: the descriptor to write to.
    is_done: ends it.
  """
  import time  # noqa: PLC0415

  begin = time.monotonic()
  while not is_done.wait(_LINE_SECS):
    secs = time.monotonic() - begin
    line = f'TensorFlow has been loading for {secs:.0f} s\n'
    with contextlib.suppress(OSError):
      os.write(stderr, line.encode())
