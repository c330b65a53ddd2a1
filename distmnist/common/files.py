"""Writes files in folders where others may write as well.

A file appears whole or not at all, and a link that somebody has put in its
place is replaced or refused, never followed.
"""

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import stat

from distmnist.common import owner_file
from distmnist.storage import copies, paths, urls

_log = logging.getLogger(__name__)

ABANDONED_SECS = 600.0
# What `_name_draft` returns, with the tag of the process; no file of a user's.
_DRAFT = re.compile(r'.+\.([0-9a-f]{8}-\d+-\w+)-[0-9a-f]{8}\.new')
_NO_LINKS = errno.EPERM, errno.ENOTSUP, errno.ENOSYS
# What a write to a full disk fails with.
FULL = errno.ENOSPC, errno.EDQUOT
_NOT_WRITABLE = errno.EROFS, errno.EACCES, errno.EPERM


@contextlib.contextmanager
def replacing(path, mode='w'):
  """Yields a new file that replaces `path` at the end.

  If the block raises, what was at `path` stays as it was. The content is on
  disk before it gets the name, so a power cut leaves the old file or the new
  one.

  Args:
    path: str; for an address, the file is written here first and then uploaded.
    mode: 'w' for UTF-8 text, whose line ends stay as they are, or 'wb'.

  Raises:
    OSError: it cannot be written.
  """
  if urls.is_remote(path):
    with copies.drafting(path) as draft, replacing(draft, mode) as file:
      yield file
    return
  # Next to `path`, as a rename has to stay on one file system.
  new = _name_draft(path)
  text = {} if 'b' in mode else {'encoding': 'utf-8', 'newline': ''}
  try:
    # With O_EXCL, which follows no link.
    with open(new, mode.replace('w', 'x'), **text) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(new, path)
  except BaseException as error:
    with contextlib.suppress(OSError):
      os.remove(new)
    if isinstance(error, OSError) and error.filename is None:
      error.filename = path  # A write or flush that fails names none.
    raise


def _name_draft(path):
  """Returns a name that nobody can guess, and that says who writes there."""
  return f'{path}.{owner_file.make_tag()}-{secrets.token_hex(4)}.new'


def create(path, text):
  """Makes a file if there is none, whole and on disk; returns whether it did.

  Of two processes that do it at once, also over NFS, only one succeeds.

  Args:
    path: str, on this machine.
    text: str.

  Raises:
    OSError: it cannot be written.
  """
  new = _name_draft(path)
  try:
    with open(new, 'x', encoding='utf-8') as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    return _link(new, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(new)


def _link(new, path):
  """Gives the file `new` the name `path`, too, if nothing has that name."""
  try:
    os.link(new, path)
    return True
  except FileExistsError:
    # NFS says so, too, if the first answer to our own request was lost.
    with contextlib.suppress(FileNotFoundError):  # Gone by now.
      return os.path.samefile(new, path)
    return False
  except OSError as error:
    if error.errno not in _NO_LINKS:
      raise
  # A file system without hard links.
  try:
    with open(new, 'rb') as source, open(path, 'xb') as file:
      file.write(source.read())
    return True
  except FileExistsError:
    return False


def see_now(folder):
  """Returns the time (float) by the clock of a folder's file server."""
  new = _name_draft(os.path.join(folder, 'time'))
  try:
    with open(new, 'xb') as file:
      # On NFS it is the server that gives a time to what is written.
      file.write(b'.')
      file.flush()
      os.fsync(file.fileno())
      return os.fstat(file.fileno()).st_mtime
  finally:
    with contextlib.suppress(OSError):
      os.remove(new)


def remove_abandoned(folder):
  """Removes the drafts that processes left in a folder when they were killed.

  Of a process of another machine nothing is known: its draft counts as left
  once it has not changed for ABANDONED_SECS.

  Args:
    folder: str, on this machine; other processes may write there meanwhile.
  """
  now = None
  for name in paths.list_names(folder):
    if not (match := _DRAFT.fullmatch(name)):
      continue
    path = os.path.join(folder, name)
    is_dead = owner_file.is_tag_dead(match[1])
    # It may be finished, and gone, by now; or another user's.
    with contextlib.suppress(OSError):
      if is_dead is None:
        now = now or see_now(folder)
        is_dead = now - os.stat(path).st_mtime > ABANDONED_SECS
      if is_dead:
        os.remove(path)


def read_dict(path):
  """Returns the dict of a JSON file; {} if it is not there, or damaged."""
  try:
    found = json.loads(paths.read_text(path))
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}


def find_obstacle(path):
  """Returns why no file can be written at a path (str), or None."""
  folder = os.path.dirname(path) or os.curdir
  if os.path.isdir(path):
    return 'it is a folder'
  if not os.path.isdir(folder):
    return f'there is no folder {folder}'
  if not os.access(folder, os.W_OK):
    return f'{folder} is not yours to write to'
  return None


def is_full(folder):
  """Whether nothing more can be written to the disk of a local folder."""
  try:
    found = os.statvfs(folder)
  except OSError:
    return False
  # Some file systems, such as /proc, count no blocks at all.
  return bool(found.f_blocks) and not found.f_bavail


def describe_refusal(error, who):
  """Returns the reason (str) of an OSError of a write, and what to do.

  Args:
    error: OSError.
    who: str, what to do if the folder is another user's.
  """
  what = 'make room there' if error.errno in FULL else who
  return f'{error.strerror}; {what}'


def no_follow(path, flags):
  """For open(opener=no_follow): raises OSError if `path` itself is a link."""
  try:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
  except OSError as error:
    if error.errno == errno.ELOOP:  # Linux speaks of many levels of links.
      error.strerror = 'It is a link, which is not followed'
    raise


def advise(reason):
  """Returns what to do (str) about a write to the logdir that failed.

  Args:
    reason: str, with the system's words for the error.
  """
  remedies = dict.fromkeys(FULL, 'make room there, or ')
  remedies |= dict.fromkeys(_NOT_WRITABLE, 'make it writable, or ')
  found = [what for n, what in remedies.items() if os.strerror(n) in reason]
  return f'{"".join(found[:1])}give another --logdir'


@contextlib.contextmanager
def private_file(path, text):
  """Keeps a file at `path`, for this user alone, until the context ends."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(path)
  fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
  try:
    with open(fd, 'w', encoding='utf-8') as file:
      file.write(text)
    yield
  finally:
    os.remove(path)


def make_private(folder):
  """Makes a folder that this user alone can read and write, if it is absent.

  Raises:
    PermissionError: it exists, but is a link, is not a folder, belongs to
      another user, or lets others write to it.
    OSError: it cannot be made.
  """
  with contextlib.suppress(FileExistsError):
    os.mkdir(folder, 0o700)
  found = os.lstat(folder)
  problem = None
  if stat.S_ISLNK(found.st_mode):
    problem = 'is a link'
  elif not stat.S_ISDIR(found.st_mode):
    problem = 'is not a folder'
  elif found.st_uid != os.geteuid():
    problem = f'belongs to another user (uid {found.st_uid})'
  elif found.st_mode & 0o022:
    problem = f'lets others write to it (mode {found.st_mode & 0o777:o})'
  if problem:
    raise PermissionError(f'{folder} {problem}')


def warn_of_owner(name, folder):
  """Warns if the folder of a flag belongs to another user, except root.

  Args:
    name: str, the flag.
    folder: str, exists; an address is skipped: its owners are of another kind.
  """
  if other := find_other_owner(folder):
    _log.info(
      f'--{name}={folder} belongs to another user (uid {other[1]}), who can '
      'change all that is in it'
    )


def find_other_owner(*paths):
  """Returns the first path of another user's, and who that is.

  A link has two owners: its own, and that of the file it leads to. What is not
  there is skipped, as are addresses: their owners are of another kind.

  Args:
    *paths: str.

  Returns:
    (path, uid), a str and an int; None if all are this user's or root's.
  """
  for path in paths:
    if urls.is_remote(path):
      continue
    for look in (os.lstat, os.stat):
      with contextlib.suppress(FileNotFoundError):
        uid = look(path).st_uid
        if uid not in (os.geteuid(), 0):
          return path, uid
  return None


def sync(path):
  """Makes sure that a file, or the names in a folder, are on disk.

  Raises:
    OSError: they are not.
  """
  number = os.open(path, os.O_RDONLY)
  try:
    os.fsync(number)
  finally:
    os.close(number)


def read_json(path):
  """Returns the content of the file `path`; raises OSError or ValueError."""
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def write_json(path, value):
  """Writes `value` to the file `path`, whole or not at all."""
  with replacing(path) as file:
    json.dump(value, file, indent=2)
    file.write('\n')
