"""Lets one process write a folder: the owner, whom a file there names.

It works in a folder that hosts share, also over NFS: the file (owner_file.py)
is created by a hard link, which only one of two processes gets, and taken over
by a rename. Its owner touches it every few seconds. A process that finds the
file takes over at once if the owner ran on this machine and has ended,
otherwise once the file has not been touched for a while, by the clock of the
file server. Before each checkpoint gets its name, the owner checks that the
file is still its own: if another took over while it was suspended or cut off,
it writes no more. In the moment between that check and the checkpoint's rename,
a process suspended there could still do harm.

In a store each owner has an object of its own; see remote_owner_file.py.
"""

import atexit
import contextlib
import logging
import os
import threading
import time

from distmnist.common import cli, owner_file, remote_owner_file, takeover
from distmnist.storage import paths, urls

_log = logging.getLogger(__name__)

_FILE = 'owner.json'
# A launcher owns the folder separately: two launchers must not write logs there
# while the chief comes and goes.
_LAUNCHER_FILE = 'launcher.json'
# How often the owner touches its file; see takeover.SILENT_SECS.
_TOUCH_SECS = 5.0


def find_living(folder):
  """Returns the owner's dict if a living process of this machine has `folder`.

  For a launcher, which asks before it touches anything. Whether a process of
  another machine is alive takes time to find out; the next owner does that.
  """
  found = _open(folder, _FILE).read() or {}
  return found if owner_file.is_alive_here(found) else None


def take_for_launcher(logdir):
  """Makes this process the one launcher that writes logs in `logdir`.

  This lasts until the process ends; taking the same folder again does nothing.

  Raises:
    cli.RunError: another launcher has it, or a chief that was started by hand.
  """
  key = urls.normalize(logdir)
  if key in _taken:
    return
  if found := find_living(logdir):
    raise takeover.refuse('--logdir', logdir, found)
  try:
    paths.make_folders(logdir)
  except OSError:
    return  # The launcher reports what it cannot make.
  owner = Owner('--logdir', logdir, _LAUNCHER_FILE)
  owner.take()
  _taken[key] = owner
  owner.keep(on_loss=lambda error: None, on_removed=lambda: None)
  atexit.register(owner.release)


_taken = {}


@contextlib.contextmanager
def owned(name, folder):
  """Keeps launchers and chiefs out of a folder while the context is open.

  Args:
    name: str, what messages call the folder.
    folder: str, exists.

  Raises:
    cli.RunError: another process has it; cli.LostError if one has taken it over
      by the end of the context.
  """
  owners = [Owner(name, folder, file) for file in (_LAUNCHER_FILE, _FILE)]
  with contextlib.ExitStack() as stack:
    for owner in owners:
      stack.enter_context(owner)
      owner.take()
      # `check` tells of it, here and below.
      owner.keep(on_loss=lambda error: None, on_removed=lambda: None)
    yield
    for owner in owners:
      owner.check()


def _open(folder, name):
  """Returns the file that names the owner of a folder."""
  is_remote = urls.is_remote(folder)
  kind = (
    remote_owner_file.RemoteOwnerFile if is_remote else owner_file.OwnerFile
  )
  return kind(os.path.join(folder, name))


def has_launcher(logdir):
  """Whether a launcher that has taken `logdir` waits, as far as is known."""
  return _is_held(_open(logdir, _LAUNCHER_FILE))


def has_owner(folder):
  """Whether a process writes `folder`, as far as is known."""
  return _is_held(_open(folder, _FILE))


def _is_held(file):
  try:
    found = file.read() or {}
    if found.get('has_ended', True) or owner_file.is_known_dead(found):
      return False
    if owner_file.is_alive_here(found):
      return True
    return file.see_touch()[1] < takeover.SILENT_SECS
  except OSError:
    return False


class Owner:
  """Owns a folder from `take` to `release`.

  Attributes:
    folder: str.
  """

  def __init__(self, name, folder, file_name=_FILE):
    """
    Args:
      name: str, what messages call the folder, such as '--logdir'.
      folder: str, exists.
      file_name: str, of the file that names its owner.
    """
    self._name = name
    self.folder = folder
    self._file = _open(folder, file_name)
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
        about to end: our predecessor, if a launcher has restarted us.
      pause: callable(secs).

    Raises:
      cli.RunError: another process has it, or the folder cannot be written;
        cli.PassingError if that may pass.
    """
    try:
      attempt = takeover.Takeover(self._name, self.folder, self._file, pause)
      self.me = attempt.run(is_new_run, patience_secs)
    except OSError as error:
      raise cli.choose_error(error)(
        f'{self._name}={self.folder} cannot be written: {error.strerror}'
      ) from error

  def keep(self, on_loss, on_removed):
    """Touches the file from now on.

    Args:
      on_loss: callable(error), called once if another takes the folder over.
      on_removed: callable, called when the folder was removed and made again.
    """
    self._on_removed = on_removed

    def touch():
      while not self._is_released.wait(_TOUCH_SECS):
        try:
          self.check()
          self._file.touch()
        except cli.LostError as error:
          on_loss(error)
          return
        except OSError:
          pass  # A checkpoint meets the same error, and reports it.

    threading.Thread(target=touch, daemon=True).start()

  def check(self):
    """Checks that we still own the folder; call it before each shared write.

    Such a write is one that another owner could have done. A folder that
    somebody has removed is made again, with a message.

    Raises:
      cli.LostError: another process has taken it over.
      OSError: it cannot be read or made.
    """
    with self._lock:
      if self._is_released.is_set():
        return
      found = self._file.read()
      if found is None:
        self._make_again()
      elif found.get('life') != self.me['life']:
        raise cli.LostError(
          f'{self._name}={self.folder} was taken over by '
          f'{owner_file.describe(found)}: stopping without saving'
        )

  def _make_again(self):
    paths.make_folders(self.folder)
    if self._file.create(self.me):
      _log.info(
        f'{self._name}={self.folder} was removed by somebody: its contents are '
        'gone, and it is created again for what is saved from now on'
      )
      self._on_removed()

  def release(self):
    """Leaves the folder to the next owner; the file stays and names the run."""
    with self._lock, contextlib.suppress(OSError, ValueError):
      self._is_released.set()
      if self.me is None:
        return
      if (self._file.read() or {}).get('life') == self.me['life']:
        self.me['has_ended'] = True
        self._file.replace(self.me)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.release()
