"""Objects of a store that are listed, brought here and put there.

An object appears whole or not at all: it gets its name with its last byte.
"""

from __future__ import annotations

from typing import Any

from distmnist.storage import retries

# The reason that FileNotFoundError is given when something is written.
NO_BUCKET = 'there is no such bucket'


def upload(local: str, url: str) -> None:
  """Uploads the file `local`, replacing the object; raises OSError."""
  retries.ask(url, lambda fs, path: fs.put_file(local, path), NO_BUCKET)


def download(url: str, local: str) -> None:
  """Writes an object to the file `local`; raises OSError."""
  retries.ask(url, lambda fs, path: fs.get_file(path, local))


def list_entries(url: str) -> list[dict[str, Any]]:
  """Returns fsspec's entries of what is in a folder; [] if there is none.

  Each has `name`, a path without the scheme; `type`, file or directory; and
  `size` in bytes.

  Raises:
    OSError: the store refuses, or does not answer; there is no such bucket.
  """

  def find(fs: Any, path: str) -> list[dict[str, Any]]:
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
