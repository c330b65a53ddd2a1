"""What is done with one object of a store, tried again while it fails.

An object is there whole or not at all: it is written by one request, or beside
its place and then renamed where the store has real folders. A store that does
not answer, or answers that it is overloaded, is asked again for half a minute,
each time with a line; a refusal is final at once.

fsspec and the library of the store are imported with the first address.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import time

from distmnist.storage import urls

_log = logging.getLogger(__name__)

# The pauses between two tries of a request.
WAITS_SECS = (0.5, 1, 2, 4, 8, 16)
# A store that says nothing for so long does not answer.
_ANSWER_SECS = 20
_NO_BUCKET = 'there is no such bucket'
_FINAL = (
  *(FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError),
  *(NotADirectoryError, ImportError, TypeError, ValueError),
)
_FINAL_WORDS = re.compile('Credentials|Profile|libhdfs|libjvm')
_FINAL_ERRNOS = (
  *(errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOSPC, errno.EMSGSIZE),
  errno.ENAMETOOLONG,
)


def read(url):
  """Returns the content (bytes) of an object; raises OSError."""
  return _ask(url, lambda fs, path: fs.cat_file(path))


def write(url, content):
  """Puts `content` (bytes) in the place of an object; raises OSError."""

  def put(fs, path):
    with _placing(fs, path) as place:
      fs.pipe_file(place, content)

  _ask(url, put, _NO_BUCKET)


def create(url, content):
  """Puts `content` (bytes) where nothing is.

  Returns:
    Whether it is there now, and by us.

  Raises:
    OSError: the store refuses, or does not answer.
  """
  try:
    _ask(
      url,
      lambda fs, path: fs.pipe_file(path, content, mode='create'),
      _NO_BUCKET,
    )
    return True
  except FileExistsError:
    # An answer that was lost on its way looks like another's object.
    return read(url) == content


def upload(local, url):
  """Puts the file `local` (str) in the place of an object; raises OSError."""

  def put(fs, path):
    with _placing(fs, path) as place:
      fs.put_file(local, place)

  _ask(url, put, _NO_BUCKET)


def download(url, local):
  """Writes an object to the file `local` (str); raises OSError."""
  _ask(url, lambda fs, path: fs.get_file(path, local))


def list_entries(url):
  """Returns the dicts of fsspec for what is in a folder; [] if none is there.

  Each has `name`, a path without the scheme; `type`, file or directory; and
  `size` in bytes.

  Raises:
    OSError: the store refuses, or does not answer; there is no such bucket.
  """

  def find(fs, path):
    fs.invalidate_cache()
    try:
      found = fs.ls(path, detail=True)
    except FileNotFoundError as error:
      if _is_of_bucket(error):
        raise
      return []
    # Some list a folder, and an object, as what is in it.
    path = path.rstrip('/')
    return [x for x in found if x['name'].rstrip('/') != path]

  return _ask(url, find)


def exists(url):
  """Whether there is such an object, or a folder with some; raises OSError."""

  def look(fs, path):
    fs.invalidate_cache()
    try:
      fs.info(path)
    except FileNotFoundError as error:
      if _is_of_bucket(error):
        raise
      return False
    return True

  return _ask(url, look)


def remove(url, is_folder=False):
  """Removes an object, or a folder with all in it; raises OSError."""

  def take_away(fs, path):
    with contextlib.suppress(FileNotFoundError):
      if is_folder:
        fs.rm(path, recursive=True)
      else:
        fs.rm_file(path)

  _ask(url, take_away)


def move(url, new_url):
  """Gives an object, or a folder with all in it, another name.

  A store copies and removes: one that is cut off leaves some under both names.

  Raises:
    OSError: the store refuses, or does not answer.
  """

  def rename(fs, path):
    fs.invalidate_cache()
    new_path = fs._strip_protocol(new_url)
    if _has_folders(fs):
      fs.makedirs(os.path.dirname(new_path), exist_ok=True)
      fs.mv(path, new_path)
      return
    for found in fs.find(path):
      fs.cp_file(found, new_path + found[len(path) :])
      fs.rm_file(found)

  _ask(url, rename)


def modified(url):
  """Returns when an object was written, in s since 1970 by the store's clock.

  Raises:
    OSError: there is none, or the store does not answer.
  """

  def look(fs, path):
    fs.invalidate_cache()
    return fs.modified(path).timestamp()

  return _ask(url, look)


def _ask(url, do, missing='there is no such object'):
  """Returns do(file system, path), which is tried again while it may help."""
  for wait_secs in (*WAITS_SECS, None):
    try:
      return do(*_open(url))
    except Exception as error:
      reason = _explain(error, url, missing)
      if wait_secs is None or _is_final(error):
        kind = type(error) if isinstance(error, _FINAL) else OSError
        kind = kind if issubclass(kind, OSError) else OSError
        number = getattr(error, 'errno', None) or errno.EIO
        raise kind(number, reason, url) from error
    _log.info(f'{url}: {reason}; trying again in {wait_secs:g} s')
    time.sleep(wait_secs)
  return None


def _open(url):
  """Returns (fsspec file system, path in it) of an address."""
  scheme = url.partition('://')[0]
  options = {}
  if scheme == 's3':
    # One try a request: those of the library are not said.
    options['config_kwargs'] = {
      'retries': {'total_max_attempts': 1},
      'connect_timeout': _ANSWER_SECS / 2,
      'read_timeout': _ANSWER_SECS,
    }
  import fsspec.core  # noqa: PLC0415  Half a second, for addresses alone.

  fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
  if scheme == 's3':
    fs.retries = 1
  return fs, path


@contextlib.contextmanager
def _placing(fs, path):
  """Yields where to write what gets the name `path` once it is whole."""
  if not _has_folders(fs):
    yield path  # An object has its name when its last byte is there.
    return
  new = f'{path}.{secrets.token_hex(4)}.new'
  fs.makedirs(os.path.dirname(path), exist_ok=True)
  try:
    yield new
    if fs.exists(path):
      fs.rm_file(path)
    fs.mv(new, path)
  except BaseException:
    with contextlib.suppress(Exception):
      fs.rm_file(new)
    raise


def _has_folders(fs):
  """Whether it is a file system, with folders and renames."""
  return 'hdfs' in fs.protocol


def _is_final(error):
  if isinstance(error, OSError) and error.errno in _FINAL_ERRNOS:
    return True
  # Each library has its own kind for it.
  words = f'{type(error).__name__} {error}'
  return isinstance(error, _FINAL) or bool(_FINAL_WORDS.search(words))


def _is_of_bucket(error):
  return 'bucket' in str(error).partition('/')[0].lower()


def _explain(error, url, missing):
  """Returns what went wrong, one line (str)."""
  scheme = url.partition('://')[0]
  if isinstance(error, ImportError):
    extra = urls.EXTRAS.get(scheme, scheme)
    return f"{scheme}:// needs a library: pip install 'distmnist[{extra}]'"
  if 'libhdfs' in str(error) or 'libjvm' in str(error):
    return (
      "hdfs:// needs Java and Hadoop's libhdfs on this machine: set JAVA_HOME, "
      'HADOOP_HOME and CLASSPATH (to what `hadoop classpath --glob` prints)'
    )
  reason = getattr(error, 'strerror', None) or str(error)
  reason = reason.strip() or type(error).__name__
  if isinstance(error, FileNotFoundError) and not _is_of_bucket(error):
    return missing
  return reason.splitlines()[0]
