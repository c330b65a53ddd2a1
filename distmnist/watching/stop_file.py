"""A request left in the log directory: the run there is to save and end.

Any process that sees the folder can leave one. The launcher of the run takes it
as a Ctrl-C, and notes that in the request; where no launcher waits, each task
heeds it. One that nobody has taken yet is looked at again and again, as a
launcher may turn out to be gone. A request that is older than the run is
ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from distmnist.common import files, layout
from distmnist.storage import paths

_FILE = 'stop_request.json'
_LOOK_SECS = 0.5


def write(logdir: str) -> dict[str, Any]:
  """Leaves the request; returns it.

  Raises:
    OSError: the folder cannot be written.
  """
  request = {
    'token': secrets.token_hex(8),
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'time': time.time(),
  }
  with files.replacing(layout.make_own_path(logdir, _FILE)) as file:
    json.dump(request, file)
  return request


def withdraw(logdir: str, request: dict[str, Any]) -> None:
  """Takes back what `write` has returned, unless a later one has come."""
  if read(logdir) == request:
    with contextlib.suppress(OSError):
      paths.remove(layout.own_path(logdir, _FILE))


def confirm(logdir: str) -> None:
  """Notes in the request that the launcher obeys it; may raise OSError."""
  request = read(logdir) | {'is_taken': True}
  with files.replacing(layout.own_path(logdir, _FILE)) as file:
    json.dump(request, file)


def read(logdir: str) -> dict[str, Any]:
  """Returns the request; empty if there is none."""
  return files.read_dict(layout.own_path(logdir, _FILE))


class Watch:
  """Looks for new requests in a thread of its own. A context."""

  def __init__(self, logdir: str, obey: Callable[[str, bool], bool]) -> None:
    """
    Args:
      obey: called in that thread, with who has left the request, and whether a
        launcher has confirmed that it obeys it. It is called with the same
        request again until it returns True.
    """
    self._logdir = logdir
    self._obey = obey
    self._old = read(logdir).get('token')
    self._is_closed = threading.Event()

  def __enter__(self) -> Watch:
    threading.Thread(target=self._run, daemon=True).start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._is_closed.set()

  def _run(self) -> None:
    while not self._is_closed.wait(_LOOK_SECS):
      found = read(self._logdir)
      token = found.get('token')
      if token not in (None, self._old):
        who = f'process {found.get("pid")} of host {found.get("host")}'
        if self._obey(who, found.get('is_taken', False)):
          self._old = token
