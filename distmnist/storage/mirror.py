"""Files that grow, such as logs and summaries, in a store.

A store cannot append. So the files are written on this machine, and a thread
uploads those that have changed: every ten seconds, or less often if that takes
long. What a killed process wrote after the last upload is missing there.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from distmnist.storage import scratch, stores, urls

_log = logging.getLogger(__name__)

# The shortest pause between looks, and the least ratio of pause to upload time.
_LOOK_SECS = 10.0
_IDLE_PER_BUSY = 20
_lock = threading.Lock()
_mirrors: dict[str, _Mirror] = {}  # By the folder on this machine.


def localize(folder: str) -> str:
  """Returns the folder in which to write files that grow in `folder`.

  A folder on this machine is returned as it is.
  """
  if not urls.is_remote(folder):
    return folder
  with _lock:
    for mirror in _mirrors.values():
      if mirror.url == folder:
        return mirror.folder
  return follow(scratch.make('grows'), folder)


def follow(folder: str, url: str) -> str:
  """Uploads what is in `folder` to `url` from now on; returns `folder`."""
  with _lock:
    _mirrors[folder] = _Mirror(folder, url)
  return folder


def close(folder: str | None = None) -> None:
  """Uploads the rest of one folder, or of all, and ends its thread.

  What cannot be uploaded is reported but is not an error: it is not a result.
  """
  with _lock:
    names = [folder] if folder else list(_mirrors)
    closed = [_mirrors.pop(name) for name in names if name in _mirrors]
  for mirror in closed:
    mirror.close()


class _Mirror:
  """One folder and its thread."""

  def __init__(self, folder: str, url: str) -> None:
    self.folder, self.url = folder, url
    # path -> (size, time)
    self._seen: dict[str, tuple[int, int]] = {}
    self._has_failed = False
    self._is_closed = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def close(self) -> None:
    self._is_closed.set()
    self._thread.join()
    self._put_changed()

  def _run(self) -> None:
    pause_secs = _LOOK_SECS
    while not self._is_closed.wait(pause_secs):
      start = time.monotonic()
      self._put_changed()
      busy_secs = time.monotonic() - start
      pause_secs = max(_LOOK_SECS, _IDLE_PER_BUSY * busy_secs)

  def _put_changed(self) -> None:
    for parent, _, names in os.walk(self.folder):
      for name in names:
        path = os.path.join(parent, name)
        try:
          stat = os.stat(path)
          version = stat.st_size, stat.st_mtime_ns
          if self._seen.get(path) != version:
            place = os.path.relpath(path, self.folder)
            stores.upload(path, os.path.join(self.url, place))
            self._seen[path] = version
        except FileNotFoundError:
          continue  # Just renamed or removed.
        except OSError as error:
          if not self._has_failed:
            self._has_failed = True
            _log.info(
              f'{self.url} cannot be written: {error.strerror}; the run goes '
              f'on, and {self.folder} has what is missing there'
            )
          return
      self._has_failed = False
