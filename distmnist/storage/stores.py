"""Operations on one object of a store.

An object appears whole or not at all: it gets its name with its last byte.
"""

import contextlib

from distmnist.storage import hdfs, retries

_NO_BUCKET = 'there is no such bucket'


def read(url):
  """Returns the content (bytes) of an object; raises OSError."""
  return retries.ask(url, lambda fs, path: fs.cat_file(path))


def write(url, content):
  """Writes `content` (bytes), replacing the object; raises OSError."""
  retries.ask(url, lambda fs, path: fs.pipe_file(path, content), _NO_BUCKET)


def create(url: str, content: bytes) -> bool:
  """Writes a new object, if there is none; returns whether ours is there now.

  Of two processes that do it at once only one succeeds. A store that ignores
  the condition leaves the last one's: see store_check.py.

  Args:
    url: of the object.
    content: unlike that of any other process.

  Raises:
    OSError: the store refuses, or does not answer.
  """
  with contextlib.suppress(FileExistsError):
    retries.ask(
      url,
      lambda fs, path: fs.pipe_file(path, content, mode='create'),
      _NO_BUCKET,
    )
  # If the answer was lost on its way, our object looks like another's.
  try:
    return read(url) == content
  except FileNotFoundError:
    return False  # Already removed by another process.


def upload(local, url):
  """Uploads the file `local` (str), replacing the object; raises OSError."""
  retries.ask(url, lambda fs, path: fs.put_file(local, path), _NO_BUCKET)


def download(url, local):
  """Writes an object to the file `local` (str); raises OSError."""
  retries.ask(url, lambda fs, path: fs.get_file(path, local))


def list_entries(url):
  """Returns fsspec's dicts for what is in a folder; [] if there is none.

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
      if retries.is_of_bucket(error):
        raise
      return []
    # Some stores list a folder, or an object, as its own content.
    path = path.rstrip('/')
    return [x for x in found if x['name'].rstrip('/') != path]

  return retries.ask(url, find)


def exists(url):
  """Whether there is such an object, or a folder with some; raises OSError."""

  def look(fs, path):
    fs.invalidate_cache()
    try:
      fs.info(path)
    except FileNotFoundError as error:
      if retries.is_of_bucket(error):
        raise
      return False
    return True

  return retries.ask(url, look)


def remove(url, is_folder=False):
  """Removes an object, or a folder with all in it; raises OSError."""

  def take_away(fs, path):
    with contextlib.suppress(FileNotFoundError):
      if is_folder:
        fs.rm(path, recursive=True)
      else:
        fs.rm_file(path)

  retries.ask(url, take_away)


def move(url, new_url):
  """Renames an object, or a folder with everything in it.

  A store copies and removes, so a move that is cut off leaves some objects
  under each name.

  Raises:
    OSError: the store refuses, or does not answer.
  """

  def rename(fs, path):
    fs.invalidate_cache()
    new_path = fs._strip_protocol(new_url)
    if isinstance(fs, hdfs.Hdfs):
      fs.mv(path, new_path)
      return
    for found in fs.find(path):
      fs.cp_file(found, new_path + found[len(path) :])
      fs.rm_file(found)

  retries.ask(url, rename)


def modified(url):
  """Returns when an object was written, in s since 1970 by the store's clock.

  Raises:
    OSError: there is none, or the store does not answer.
  """

  def look(fs, path):
    fs.invalidate_cache()
    return fs.modified(path).timestamp()

  return retries.ask(url, look)
