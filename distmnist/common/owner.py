"""Lets one process write a folder: the owner, whom a file there names.

It works in a folder that hosts share, also over NFS, and in a store: each owner
makes a file with a number that only one process gets (numbered_file.py), and
touches it every few seconds. A process that finds the file takes over at once
if the owner ran on this machine and has ended, otherwise once the file has not
been touched for a while, by the clock of the file server. Before each
checkpoint gets its name, the owner checks that no number is higher than its
own: if another took over while it was suspended or cut off, it writes no more.
In the moment between that check and the checkpoint's rename, a process
suspended there could still do harm.
"""

import contextlib
import errno
import logging
import os
import threading
import time

from distmnist.common import cli, layout, numbered_file, owner_file, takeover
from distmnist.storage import retries, urls

_log = logging.getLogger(__name__)

_FILE = 'owner.json'
# A launcher owns the folder separately: two launchers must not write logs there
# while the chief comes and goes.
_LAUNCHER_FILE = 'launcher.json'
# What an owner does that has lost its folder.
_ON_LOSS = {
  _FILE: 'stopping without saving',
  _LAUNCHER_FILE: 'stopping the tasks of this launch',
}
_NUM_LOOKS = 5


def find_living(folder):
  """Returns the owner's dict if a living process of this machine has `folder`.

  For a launcher, which asks before it touches anything. Whether a process of
  another machine is alive takes time to find out; the next owner does that.
  """
  found = _open(folder, _FILE).read() or {}
  return found if owner_file.is_alive_here(found) else None


@contextlib.contextmanager
def held_by_launcher(logdir, on_loss):
  """Makes this process the one launcher that writes logs in `logdir`.

  This lasts as long as the context does.

  Args:
    logdir: str; made if it does not exist.
    on_loss: callable(error), called in another thread if another launcher takes
      the folder over: what is running here must end.

  Raises:
    cli.RunError: another launcher has it, or a chief that was started by hand.
  """
  if found := find_living(logdir):
    raise takeover.refuse('--logdir', logdir, found)
  try:
    layout.make_own_dir(logdir)
  except OSError:
    yield  # The launcher reports what it cannot make.
    return
  with Owner('--logdir', logdir, _LAUNCHER_FILE) as owner:
    _take_patiently(owner)
    owner.keep(on_loss, on_removed=lambda: None)
    yield


def _take_patiently(owner):
  """Takes a folder, again while it cannot be written for what may pass.

  Raises:
    cli.RunError: as Owner.take does.
  """
  # A request to a store was repeated before; see storage/retries.py.
  waits = () if urls.is_remote(owner.folder) else retries.WAITS_SECS
  for secs in (*waits, None):
    try:
      owner.take()
      return
    except cli.PassingError as error:
      if secs is None:
        raise
      _log.info(f'{error}; trying again in {secs:g} s')
    time.sleep(secs)


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
  return numbered_file.find(layout.own_path(folder, name))


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
    self._on_loss = _ON_LOSS[file_name]
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
      layout.make_own_dir(self.folder)
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
      while not self._is_released.wait(takeover.TOUCH_SECS):
        try:
          self._touch()
        except cli.LostError as error:
          on_loss(error)
          return
        except OSError:
          pass  # A checkpoint meets the same error, and reports it.

    threading.Thread(target=touch, daemon=True).start()

  def _touch(self):
    # With the lock, or a touch that is under way would undo `release`.
    with self._lock:
      if not self._is_released.is_set():
        self._check()
        self._file.touch(self.me)

  def check(self):
    """Checks that we still own the folder; call it before each shared write.

    Such a write is one that another owner could have done. A folder that
    somebody has removed is made again, with a message.

    Raises:
      cli.LostError: another process has taken it over.
      OSError: it cannot be read or made.
    """
    with self._lock:
      if not self._is_released.is_set():
        self._check()

  def _check(self):
    for _ in range(_NUM_LOOKS):
      found = self._file.read()
      if found is None:
        if self._make_again():
          return
        continue  # Another was faster: look who it is.
      if found.get('life') != self.me['life']:
        raise cli.LostError(
          f'{self._name}={self.folder} was taken over by '
          f'{owner_file.describe(found)}: {self._on_loss}'
        )
      return
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.folder)

  def _make_again(self):
    """Makes a removed folder again; returns whether it is ours."""
    layout.make_own_dir(self.folder)
    if not self._file.create(self.me):
      return False
    _log.info(
      f'{self._name}={self.folder} was removed by somebody: its contents are '
      'gone, and it is created again for what is saved from now on'
    )
    self._on_removed()
    return True

  def release(self):
    """Leaves the folder to the next owner; the file stays and names the run."""
    with self._lock, contextlib.suppress(OSError, ValueError):
      self._is_released.set()
      if self.me is None:
        return
      if (self._file.read() or {}).get('life') == self.me['life']:
        self.me['has_ended'] = True
        self._file.rewrite(self.me)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.release()
