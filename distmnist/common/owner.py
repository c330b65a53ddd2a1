"""Lets one process write a folder: the owner, whom a file there names.

Each owner has a file of its own with the next number in its name, such as
owner.json.00000002. It is created only if there is none, which a file system
(by a hard link, also over NFS) and a store let only one of two processes do,
and the highest number is the owner's. The number is a fencing token: an owner
writes its own file only, and before each checkpoint gets its name it checks
that no number is higher. If another took over while it was suspended or cut
off, it writes no more. In the moment between that check and the checkpoint's
rename, a process suspended there could still do harm.

An owner touches its file every few seconds. A process that finds the file
takes over at once if the owner ran on this machine and has ended, otherwise
once the file has not been touched for a while, by the clock of the file server.

On a store that creates an object even where one exists (store_check.py says so)
two that start at the same moment both believe that they are the owner, until
they check. The last to write goes on, and the other has lost the folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distmnist.common import cli, layout, owner_file
from distmnist.storage import paths, retries, urls

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
# How often an owner touches its file.
TOUCH_SECS = 5.0
# An owner of which nothing else is known has lost its folder once it has not
# touched its file for this long.
SILENT_SECS = 30.0
LOOK_SECS = 0.5
# And two touches must have been missed while we looked: the clock of the file
# server may have been set forward.
_NUM_SAME = int(2 * TOUCH_SECS / LOOK_SECS) + 4
# A name that was listed may be gone when it is read: a newer one has come.
_NUM_READS = 3
_NUM_CHECKS = 5


def find_living(folder: str) -> dict[str, Any] | None:
  """Returns the owner's dict if a living process of this machine has `folder`.

  For a launcher, which asks before it touches anything. Whether a process of
  another machine is alive takes time to find out; the next owner does that.
  """
  found = _open(folder, _FILE).read() or {}
  return found if owner_file.is_alive_here(found) else None


@contextlib.contextmanager
def held_by_launcher(
  logdir: str, on_loss: Callable[[Exception], None]
) -> Iterator[None]:
  """Makes this process the one launcher that writes logs in `logdir`.

  This lasts as long as the context does.

  Args:
    logdir: made if it does not exist.
    on_loss: called in another thread if another launcher takes the folder
      over: what is running here must end.

  Raises:
    cli.RunError: another launcher has it, or a chief that was started by hand.
  """
  if found := find_living(logdir):
    raise _refuse('--logdir', logdir, found)
  try:
    layout.make_own_dir(logdir)
  except OSError:
    yield  # The launcher reports what it cannot make.
    return
  with Owner('--logdir', logdir, _LAUNCHER_FILE) as owner:
    _take_patiently(owner)
    owner.keep(on_loss, on_removed=lambda: None)
    yield


def _take_patiently(owner: Owner) -> None:
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
def owned(name: str, folder: str) -> Iterator[None]:
  """Keeps launchers and chiefs out of a folder while the context is open.

  Args:
    name: what messages call the folder.
    folder: exists.

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


def _open(folder: str, name: str) -> NumberedFile:
  """Returns the file that names the owner of a folder."""
  return NumberedFile(layout.own_path(folder, name))


def find_run(logdir: str) -> str | None:
  """Returns what all lives of the training in a folder have in common.

  It is None where no training has been.

  Raises:
    OSError: it cannot be read.
  """
  return (_open(logdir, _FILE).read() or {}).get('run')


def has_launcher(logdir: str) -> bool:
  """Whether a launcher that has taken `logdir` waits, as far as is known."""
  return _is_held(_open(logdir, _LAUNCHER_FILE))


def has_owner(folder: str) -> bool:
  """Whether a process writes `folder`, as far as is known."""
  return _is_held(_open(folder, _FILE))


def _is_held(file: NumberedFile) -> bool:
  try:
    found = file.read() or {}
    if found.get('has_ended', True) or owner_file.is_known_dead(found):
      return False
    if owner_file.is_alive_here(found):
      return True
    return file.see_touch()[1] < SILENT_SECS
  except OSError:
    return False


def _refuse(name: str, folder: str, found: Mapping[str, Any]) -> cli.RunError:
  """Returns the cli.RunError that names the owner of a folder."""
  return cli.RunError(
    f'{name}={folder} is in use by {owner_file.describe(found)}: stop that '
    'one, or give another folder'
  )


class Owner:
  """Owns a folder from `take` to `release`.

  Attributes:
    folder: its path or address.
    me: what its file says of this process; {} before `take`.
  """

  def __init__(self, name: str, folder: str, file_name: str = _FILE) -> None:
    """
    Args:
      name: what messages call the folder, such as '--logdir'.
      folder: exists.
      file_name: of the file that names its owner.
    """
    self._name = name
    self.folder = folder
    self._on_loss = _ON_LOSS[file_name]
    self._file = _open(folder, file_name)
    self._lock = threading.Lock()
    self._is_released = threading.Event()
    self._on_removed: Callable[[], None] = lambda: None
    self.me: dict[str, Any] = {}

  @property
  def run(self) -> str:
    """What all lives of one training have in common."""
    return self.me['run']

  def take(
    self,
    is_new_run: bool = False,
    patience_secs: float = 0.0,
    pause: Callable[[float], None] = time.sleep,
  ) -> None:
    """Makes this process the owner.

    Args:
      is_new_run: whether another training begins in the folder.
      patience_secs: how long to wait for a living owner, which may be about to
        end: our predecessor, if a launcher has restarted us.
      pause: called with seconds.

    Raises:
      cli.RunError: another process has it, or the folder cannot be written;
        cli.PassingError if that may pass.
    """
    try:
      layout.make_own_dir(self.folder)
      self._wait_until_ours(is_new_run, patience_secs, pause)
    except OSError as error:
      raise cli.choose_error(error)(
        f'{self._name}={self.folder} cannot be written: {error.strerror}'
      ) from error

  def _wait_until_ours(
    self,
    is_new_run: bool,
    patience_secs: float,
    pause: Callable[[float], None],
  ) -> None:
    """Returns once the file says that this process is the owner."""
    watch = _Watch(self._file)
    has_said = False
    deadline = time.monotonic() + patience_secs
    may_be_amid_touch = paths.may_vanish(self.folder)
    while True:
      found = self._file.read()
      if found is None and may_be_amid_touch:
        may_be_amid_touch = False
        pause(LOOK_SECS)
        continue
      if found and self.me and found.get('life') == self.me['life']:
        return  # An earlier try got it, and was told of an error.
      try:
        is_alive, is_gone = watch.judge(found)
      except FileNotFoundError:
        continue  # Removed between two looks.
      if is_gone:
        run = None if is_new_run else (found or {}).get('run')
        self.me = owner_file.describe_self(run)
        if self._file.create(self.me):
          return
        pause(LOOK_SECS)  # Another was faster: it is the owner now.
        continue
      found = found or {}
      if is_alive and time.monotonic() >= deadline:
        raise _refuse(self._name, self.folder, found)
      if not has_said:
        has_said = True
        _log.info(
          f'waiting for {self._name}={self.folder}: '
          f'{owner_file.describe(found)} has it, or has ended without a word '
          f'less than {SILENT_SECS:g} s ago'
        )
      pause(LOOK_SECS)

  def keep(
    self,
    on_loss: Callable[[cli.LostError], None],
    on_removed: Callable[[], None],
  ) -> None:
    """Touches the file from now on, in another thread.

    Args:
      on_loss: called once if another process takes the folder over.
      on_removed: called when the folder was removed and made again.
    """
    self._on_removed = on_removed

    def touch() -> None:
      while not self._is_released.wait(TOUCH_SECS):
        try:
          self._touch()
        except cli.LostError as error:
          on_loss(error)
          return
        except OSError:
          pass  # A checkpoint meets the same error, and reports it.

    threading.Thread(target=touch, daemon=True).start()

  def _touch(self) -> None:
    # With the lock, or a touch that is under way would undo `release`.
    with self._lock:
      if not self._is_released.is_set():
        self._check()
        self._file.touch(self.me)

  def check(self) -> None:
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

  def _check(self) -> None:
    for _ in range(_NUM_CHECKS):
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

  def _make_again(self) -> bool:
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

  def release(self) -> None:
    """Leaves the folder to the next owner; the file stays and names the run."""
    with self._lock, contextlib.suppress(OSError, ValueError):
      self._is_released.set()
      if not self.me:
        return
      if (self._file.read() or {}).get('life') == self.me['life']:
        self.me['has_ended'] = True
        self._file.write(self.me)

  def __enter__(self) -> Owner:
    return self

  def __exit__(self, *_: object) -> None:
    self.release()


class _Watch:
  """Looks at an owner again and again, to see whether it is alive."""

  def __init__(self, file: NumberedFile) -> None:
    self._file = file
    # (life, time of the last touch) at the last look.
    self._seen: tuple[str | None, float] | None = None
    self._num_same = 0  # How many looks before it have seen the same.

  def judge(self, found: Mapping[str, Any] | None) -> tuple[bool, bool]:
    """Returns (is_alive, is_gone) of the owner; both False if unknown.

    Args:
      found: what its file says; None without a file.

    Raises:
      FileNotFoundError: the file has gone meanwhile.
    """
    if found is None:
      return False, True
    if found.get('has_ended') or owner_file.is_known_dead(found):
      return False, True
    touched, silent_secs = self._file.see_touch()
    seen = found.get('life'), touched
    is_touched = self._seen not in (None, seen)
    self._num_same = self._num_same + 1 if self._seen == seen else 0
    self._seen = seen
    is_alive = is_touched or owner_file.is_alive_here(found)
    is_silent = silent_secs > SILENT_SECS and self._num_same >= _NUM_SAME
    return is_alive, is_silent and not is_alive


class NumberedFile:
  """The file that names the owner of something, handed on by number."""

  def __init__(self, path: str) -> None:
    """
    Args:
      path: a path or an address; a dot and the numbers are added to it.
    """
    self._path = path
    self._folder, self._name = os.path.split(path)
    self._highest = 0
    self._mine = 0

  def read(self) -> dict[str, Any] | None:
    """Returns what the owner's file says, or None if there is none.

    It is {} while the file cannot be understood.

    Raises:
      OSError: it cannot be read.
    """
    for _ in range(_NUM_READS):
      self._highest = max(self._list_numbers(), default=0)
      if not self._highest:
        return None
      try:
        found = json.loads(paths.read_text(self._find_place(self._highest)))
        return found if isinstance(found, dict) else {}
      except FileNotFoundError:
        continue
      except ValueError:
        return {}  # Just being made, or damaged: its time will tell.
    return None

  def create(self, found: Mapping[str, Any]) -> bool:
    """Takes over from the owner that `read` saw, if any.

    Returns:
      Whether the file is ours and says `found`; if not, another process was
      faster.

    Raises:
      OSError: it cannot be written.
    """
    self._mine = number = self._highest + 1
    if not paths.create(self._find_place(number), json.dumps(found).encode()):
      return False
    numbers = self._list_numbers()
    # The number was free as two others have come and one has gone since.
    if max(numbers, default=0) > number:
      paths.remove(self._find_place(number))
      return False
    self._highest = number
    for lower in numbers:
      if lower < number:
        paths.remove(self._find_place(lower))
    return True

  def write(self, found: Mapping[str, Any]) -> None:
    """Makes our own file say something else."""
    paths.write(self._find_place(self._mine), json.dumps(found).encode())

  def touch(self, found: Mapping[str, Any]) -> None:
    """Shows that the owner, of whom the file says `found`, is alive."""
    place = self._find_place(self._mine)
    paths.touch(place, json.dumps(found).encode())

  def see_touch(self) -> tuple[float, float]:
    """Returns (time of the last touch, seconds since then).

    Both are by the clock of the file server or the store.
    """
    touched = paths.see_time(self._find_place(self._highest))
    return touched, paths.see_now(self._folder) - touched

  def _find_place(self, number: int) -> str:
    return f'{self._path}.{number:08d}'

  def _list_numbers(self) -> list[int]:
    found = (os.path.splitext(name) for name in paths.list_names(self._folder))
    return [
      int(ending[1:])
      for root, ending in found
      if root == self._name and ending[1:].isdigit()
    ]
