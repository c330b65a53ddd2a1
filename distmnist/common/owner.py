"""One process writes a folder: the one whose life stands in a file there.

Made for a folder that hosts share, NFS too: the file (owner_file.py) appears by
a hard link, which one of two gets, and is taken over by a rename. Its owner
touches it every few seconds. A process that finds it there takes over at once
if the owner has ended on this machine, and else once the file has not been
touched for a while, by the clock of the file server. Before each checkpoint
gets its name the owner looks whether the file is still its own: one that was
suspended, or cut off, while another took over writes no more. Between that look
and the rename of a checkpoint lies a moment, in which a suspended process could
still do harm.
"""

import atexit
import contextlib
import logging
import os
import threading
import time

from distmnist.common import cli, owner_file, takeover

_log = logging.getLogger(__name__)

_FILE = 'owner.json'
# A launcher has the folder in its own right: two of them must not write the
# logs there, while the chief comes and goes.
_LAUNCHER_FILE = 'launcher.json'
# So often the owner touches its file; see takeover.SILENT_SECS.
_TOUCH_SECS = 5.0


def find_living(folder):
  """Returns the owner's dict if a living process of this machine has `folder`.

  For a launcher, which asks before it touches anything; whether one of another
  machine lives takes time to find out, and is found out by the owner to be.
  """
  found = owner_file.read(os.path.join(folder, _FILE)) or {}
  return found if owner_file.is_alive_here(found) else None


def take_for_launcher(logdir):
  """Makes this process the one launcher that writes logs in `logdir`.

  Until the process ends; that it takes the folder once more is nothing new.

  Raises:
    cli.RunError: another launcher has it, or a chief that was started by hand.
  """
  key = os.path.realpath(logdir)
  if key in _taken:
    return
  if found := find_living(logdir):
    raise takeover.refuse('--logdir', logdir, found)
  try:
    os.makedirs(logdir, exist_ok=True)
  except OSError:
    return  # The launcher names what it cannot make.
  owner = Owner('--logdir', logdir, _LAUNCHER_FILE)
  owner.take()
  _taken[key] = owner
  owner.keep(on_loss=lambda error: None, on_removed=lambda: None)
  atexit.register(owner.release)


_taken = {}


class Owner:
  """Has the folder from `take` to `release`.

  Attributes:
    folder: str.
  """

  def __init__(self, name, folder, file_name=_FILE):
    """
    Args:
      name: str, how a message calls it, such as '--logdir'.
      folder: str, exists.
      file_name: str, of the file in which its owner stands.
    """
    self._name = name
    self.folder = folder
    self._path = os.path.join(folder, file_name)
    self._lock = threading.Lock()
    self._is_released = threading.Event()
    self._on_removed = lambda: None
    self.me = None

  @property
  def run(self):
    """str, the same in all lives of one training."""
    return self.me['run']

  def take(self, is_new_run=False, patience_secs=0.0, pause=time.sleep):
    """Makes this process the owner.

    Args:
      is_new_run: bool, whether another training begins in the folder.
      patience_secs: float, how long to wait for a living owner, which may be
        about to end: the one before this, if a launcher has started us again.
      pause: callable(secs).

    Raises:
      cli.RunError: another process has it, or the folder cannot be written.
    """
    try:
      attempt = takeover.Takeover(self._name, self._path, pause)
      self.me = attempt.run(is_new_run, patience_secs)
    except OSError as error:
      raise cli.RunError(
        f'{self._name}={self.folder} cannot be written: {error.strerror}'
      ) from error

  def keep(self, on_loss, on_removed):
    """Touches the file from now on.

    Args:
      on_loss: callable(error), told once if another has taken the folder over.
      on_removed: callable, told when the folder was removed and made again.
    """
    self._on_removed = on_removed

    def touch():
      while not self._is_released.wait(_TOUCH_SECS):
        try:
          self.check()
          os.utime(self._path)
        except cli.LostError as error:
          on_loss(error)
          return
        except OSError:
          pass  # A checkpoint meets the same error, and tells it.

    threading.Thread(target=touch, daemon=True).start()

  def check(self):
    """To be called before anything is written that another could have written.

    A folder that somebody has removed is made again, out loud.

    Raises:
      cli.LostError: another process has taken it over.
      OSError: it cannot be read or made.
    """
    with self._lock:
      if self._is_released.is_set():
        return
      found = owner_file.read(self._path)
      if found is None:
        self._make_again()
      elif found.get('life') != self.me['life']:
        raise cli.LostError(
          f'{self._name}={self.folder} was taken over by '
          f'{owner_file.describe(found)}: stopping without saving'
        )

  def _make_again(self):
    os.makedirs(self.folder, exist_ok=True)
    new, _ = owner_file.write_beside(self._path, self.me)
    try:
      if owner_file.link(new, self._path):
        _log.info(
          f'{self._name}={self.folder} was removed by somebody: what was '
          'in it is gone, and it is made again for what is saved from now on'
        )
        self._on_removed()
    finally:
      os.remove(new)

  def release(self):
    """Leaves the folder to the next one; the file stays, for the run's name."""
    with self._lock, contextlib.suppress(OSError, ValueError):
      self._is_released.set()
      if self.me is None:
        return
      if (owner_file.read(self._path) or {}).get('life') == self.me['life']:
        self.me['has_ended'] = True
        new, _ = owner_file.write_beside(self._path, self.me)
        os.replace(new, self._path)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.release()
