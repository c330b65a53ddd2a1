"""One process writes a folder: the one whose life stands in a file there.

Made for a folder that hosts share, NFS too: the file appears by a hard link,
which one of two gets, and is taken over by a rename. Its owner touches it every
few seconds. Who finds it there takes over at once if the owner has ended on
this machine, and else once the file has not been touched for a while, by the
clock of the file server. Before each checkpoint gets its name the owner looks
whether the file is still its own: one that was suspended, or cut off, while
another took over writes no more. Between that look and the rename of a
checkpoint lies a moment, in which a suspended process could still do harm.
"""

import atexit
import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time

from distmnist import cli

_FILE = 'owner.json'
# A launcher has the folder in its own right: two of them must not write the
# logs there, while the chief comes and goes.
_LAUNCHER_FILE = 'launcher.json'
# So often the owner touches its file; who has not for so long has lost it.
_TOUCH_SECS = 5.0
SILENT_SECS = 30.0
_LOOK_SECS = 0.5
_BOOT_ID = '/proc/sys/kernel/random/boot_id'


def describe_self(run=None):
  """Returns what the file says of this process, a dict.

  Args:
    run: str, what all lives of one training have in common; a new one if None.
  """
  return {
    'life': secrets.token_hex(8),
    'run': run or secrets.token_hex(8),
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'since': time.strftime('%Y-%m-%d %H:%M:%S'),
    'machine': _read_machine(),
    'start': _read_start(os.getpid()),
    'has_ended': False,
  }


def read(folder, name=_FILE):
  """Returns what the file says, a dict, or None if there is none."""
  try:
    with open(os.path.join(folder, name), encoding='utf-8') as file:
      found = json.load(file)
      return found if isinstance(found, dict) else {}
  except (FileNotFoundError, NotADirectoryError):
    return None
  except ValueError:
    return {}  # Made in this moment, or damaged: its time will tell.


def find_living(folder):
  """Returns the owner's dict if a living process of this machine has `folder`.

  For a launcher, which asks before it touches anything; whether one of another
  machine lives takes time to find out, and is found out by the owner to be.
  """
  found = read(folder) or {}
  return found if _is_alive_here(found) else None


def describe(found):
  """Returns who `found` is, for people."""
  return (
    f'process {found.get("pid")} of host {found.get("host")} since '
    f'{found.get("since")}'
  )


def refuse(name, folder, found):
  """Returns the cli.RunError that says who has a folder."""
  return cli.RunError(
    f'{name}={folder} is in use by {describe(found)}: stop that one, or give '
    'another folder'
  )


def take_for_launcher(logdir, say):
  """Makes this process the one launcher that writes logs in `logdir`.

  Until the process ends; that it takes the folder once more is nothing new.

  Raises:
    cli.RunError: another launcher has it, or a chief that was started by hand.
  """
  key = os.path.realpath(logdir)
  if key in _taken:
    return
  if found := find_living(logdir):
    raise refuse('--logdir', logdir, found)
  try:
    os.makedirs(logdir, exist_ok=True)
  except OSError:
    return  # The launcher names what it cannot make.
  owner = Owner('--logdir', logdir, say, _LAUNCHER_FILE)
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

  def __init__(self, name, folder, say, file_name=_FILE):
    """
    Args:
      name: str, how a message calls it, such as '--logdir'.
      folder: str, exists.
      say: callable that prints a line.
      file_name: str, of the file in which its owner stands.
    """
    self._name = name
    self.folder = folder
    self._path = os.path.join(folder, file_name)
    self._file_name = file_name
    self._say = say
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
      self._take(is_new_run, patience_secs, pause)
    except OSError as error:
      raise cli.RunError(
        f'{self._name}={self.folder} cannot be written: {error.strerror}'
      ) from error

  def _take(self, is_new_run, patience_secs, pause):
    first, has_said = None, False
    deadline = time.monotonic() + patience_secs
    while True:
      found = read(self.folder, self._file_name)
      run = None if is_new_run else (found or {}).get('run')
      self.me = describe_self(run)
      new, now = self._write_beside()
      try:
        if found is None:
          if _link(new, self._path):
            return
          continue
        if found.get('has_ended') or _is_known_dead(found):
          self._replace(new, pause)
          return
        touched = os.stat(self._path).st_mtime
        first = first or (found.get('life'), touched)
        silent_secs = now - touched
        is_alive = _is_alive_here(found) or (
          first != (found.get('life'), touched)
        )
        if not is_alive and silent_secs > SILENT_SECS:
          self._replace(new, pause)
          return
      except FileNotFoundError:
        continue  # Removed between two looks.
      finally:
        with contextlib.suppress(FileNotFoundError):
          os.remove(new)
      if is_alive and time.monotonic() >= deadline:
        raise refuse(self._name, self.folder, found)
      if not has_said:
        has_said = True
        self._say(
          f'waiting for {self._name}={self.folder}: {describe(found)} has it, '
          f'or has ended without a word less than {SILENT_SECS:g} s ago'
        )
      pause(_LOOK_SECS)

  def _write_beside(self):
    """Returns (path, time) of a new file about us; time is the server's."""
    new = f'{self._path}.{secrets.token_hex(4)}.new'
    with open(new, 'x', encoding='utf-8') as file:
      json.dump(self.me, file)
      file.flush()
      os.fsync(file.fileno())
      return new, os.fstat(file.fileno()).st_mtime

  def _replace(self, new, pause):
    os.replace(new, self._path)
    # Who else took over in this moment has written after us, or reads us.
    pause(0.05)
    found = read(self.folder, self._file_name)
    if (found or {}).get('life') != self.me['life']:
      raise refuse(self._name, self.folder, found or {})

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
      found = read(self.folder, self._file_name)
      if found is None:
        self._make_again()
      elif found.get('life') != self.me['life']:
        raise cli.LostError(
          f'{self._name}={self.folder} was taken over by {describe(found)}: '
          'stopping without saving'
        )

  def _make_again(self):
    os.makedirs(self.folder, exist_ok=True)
    new, _ = self._write_beside()
    try:
      if _link(new, self._path):
        self._say(
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
      if (read(self.folder, self._file_name) or {}).get('life') == self.me[
        'life'
      ]:
        self.me['has_ended'] = True
        new, _ = self._write_beside()
        os.replace(new, self._path)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.release()


def _link(new, path):
  """Returns whether `path` was made, and by us."""
  try:
    os.link(new, path)
    return True
  except FileExistsError:
    return False
  except OSError as error:
    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
      raise
  # A file system without hard links.
  try:
    with open(new, encoding='utf-8') as source:
      text = source.read()
    with open(path, 'x', encoding='utf-8') as file:
      file.write(text)
    return True
  except FileExistsError:
    return False


def _is_alive_here(found):
  return _is_of_this_machine(found) and not _has_ended(found)


def _is_known_dead(found):
  return _is_of_this_machine(found) and _has_ended(found)


def _is_of_this_machine(found):
  machine = found.get('machine')
  return machine is not None and machine == _read_machine()


def _has_ended(found):
  if found.get('has_ended'):
    return True
  start = _read_start(found['pid'])
  # A process id is used again after a while.
  return start is None or start != found['start']


def _read_machine():
  """Returns what two processes have in common that know each other's ids."""
  try:
    with open(_BOOT_ID, encoding='ascii') as file:
      return f'{file.read().strip()} {os.readlink("/proc/self/ns/pid")}'
  except OSError:
    return None


def _read_start(pid):
  """Returns when process `pid` was started, in ticks; None if it has ended."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as file:
      fields = file.read().rpartition(') ')[2].split()
  except OSError:
    return None
  return None if fields[0] in 'ZX' else fields[19]
