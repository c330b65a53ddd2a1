"""Finds a data set's four IDX files, or downloads them where they are missing.

Any number of processes and users may do this at once: a file gets its name
only when it is whole and its hash is right.
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distmnist.common import cli
from distmnist.storage import copies, paths, urls

if TYPE_CHECKING:
  import requests

_ANSWER_SECS = 8.0  # A mirror's time to answer, name look-up included.
_STALL_SECS = 10.0  # The longest pause between two bytes of an answer.


def find_or_download(
  name: str, data_dir: str, mirrors: Iterable[str], md5s: Mapping[str, str]
) -> dict[str, str]:
  """Returns the paths of a data set's files, downloaded if need be.

  The files lie in `data_dir`/`name` or in `data_dir` itself, gzipped
  (FILE.gz) or raw (FILE). One folder must hold all of them, since the files
  of different data sets have the same names. What is found is taken as it is;
  what is downloaded must have the hash of `md5s`.

  Args:
    name: of the data set.
    data_dir: a folder that may have to be made.
    mirrors: addresses that FILE.gz is appended to, tried in order.
    md5s: from FILE to the md5 of FILE.gz, hexadecimal.

  Returns:
    The path of each FILE.

  Raises:
    cli.RunError: the folder cannot be written, or no mirror has the files.
  """
  if urls.is_remote(data_dir):
    return _fetch(name, data_dir, md5s)
  data_dir = os.path.abspath(os.path.expanduser(data_dir))
  folder = os.path.join(data_dir, name)
  for place in (folder, data_dir):
    files = _find(place, md5s)
    if len(files) == len(md5s):
      return files
  files = _find(folder, md5s)
  missing = [file for file in md5s if file not in files]
  _check_writable(name, folder, missing)
  reasons = []
  for mirror in mirrors:
    reason = _download(name, folder, mirror, missing, md5s)
    files = _find(folder, md5s)
    missing = [file for file in md5s if file not in files]
    if not missing:
      return files
    reasons.append(f'{mirror}: {reason}')
  raise cli.RunError(
    f'cannot download {name} from any of its mirrors ({"; ".join(reasons)}): '
    f'put {_names(missing)} into {folder} by hand, point --data_dir at a '
    'folder that has them, or use --dataset=synthetic, which needs no network'
  )


def _find(folder: str, names: Iterable[str]) -> dict[str, str]:
  """Returns a dict from name to path, of the files that exist."""
  there = set(paths.list_names(folder))
  # If both exist, the gzipped one, which comes last, wins: it has a checksum.
  return {
    name: os.path.join(folder, name + ending)
    for name in names
    for ending in ('', '.gz')
    if name + ending in there
  }


def _fetch(name: str, data_dir: str, names: Collection[str]) -> dict[str, str]:
  """Copies the files of a data set here; returns their paths by name.

  Raises:
    cli.UsageError: they are not in the store, or cannot be read there.
  """
  data_dir = data_dir.rstrip('/')
  try:
    for place in (f'{data_dir}/{name}', data_dir):
      found = _find(place, names)
      if len(found) == len(names):
        return {file: copies.fetch_file(path) for file, path in found.items()}
  except OSError as error:
    raise cli.choose_error(error, cli.UsageError)(
      f'--data_dir={data_dir} cannot be read: {error.strerror}'
    ) from error
  raise cli.UsageError(
    f'--data_dir={data_dir} does not have the files of {name}: put '
    f'{_names(names)} there; --download_only with a --data_dir on this machine '
    'downloads them'
  )


def _check_writable(name: str, folder: str, missing: Iterable[str]) -> None:
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise _not_written(name, folder, missing, error) from error


def _not_written(
  name: str, folder: str, missing: Iterable[str], error: OSError
) -> cli.RunError:
  return cli.choose_error(error)(
    f'cannot write the files of {name} to {folder}: {error.strerror or error}: '
    'make it a folder that you can write to, have its owner put '
    f'{_names(missing)} there, or point --data_dir elsewhere'
  )


def _names(missing: Iterable[str]) -> str:
  return ', '.join(f'{file}.gz' for file in missing)


def _download(
  name: str,
  folder: str,
  mirror: str,
  missing: list[str],
  md5s: Mapping[str, str],
) -> str | None:
  """Downloads what is missing; returns why it stopped, or None."""
  # Slow to import, and needed once in a data_dir's life.
  import pooch
  import requests

  reason = _why_silent(mirror + missing[0] + '.gz')
  if reason:
    return reason
  print(
    f'downloading {name} ({len(missing)} files) from {mirror} to {folder}',
    file=sys.stderr,
    flush=True,
  )
  pooch.get_logger().setLevel('WARNING')  # Else it adds a line per file.
  http = pooch.HTTPDownloader(
    progressbar=sys.stderr.isatty(),
    chunk_size=1 << 16,
    timeout=(_ANSWER_SECS, _STALL_SECS),
  )

  def fetch(url: str, path: str, pup: Any) -> None:
    http(url, path, pup)
    # Only its owner can read Pooch's temporary file, which is then moved as it
    # is, but others share data_dir.
    os.chmod(path, 0o644)

  for file in missing:
    try:
      pooch.retrieve(
        mirror + file + '.gz',
        known_hash='md5:' + md5s[file],
        fname=file + '.gz',
        path=folder,
        # Its protocol names the parameters otherwise; they come in order.
        downloader=fetch,  # type: ignore[arg-type]
      )
    except requests.RequestException as error:
      return _reason(error)
    except OSError as error:
      # Another user may have been first, in a folder like /tmp where nobody can
      # replace another user's files.
      if file not in _find(folder, [file]):
        raise _not_written(name, folder, missing, error) from error
    except ValueError:
      return f'{file}.gz has a different md5 from {md5s[file]}'
  return None


def _why_silent(url: str) -> str | None:
  """Returns why the server of `url` gives no answer, or None if it does.

  A thread asks, since the timeouts of requests apply to each address of a host
  separately and not at all to the look-up of its name: a dead network would
  take minutes.
  """
  import requests

  answers: queue.Queue[str | None] = queue.Queue()

  def ask() -> None:
    try:
      with requests.head(url, timeout=_ANSWER_SECS, allow_redirects=True):
        answers.put(None)
    except requests.RequestException as error:
      answers.put(_reason(error))

  threading.Thread(target=ask, daemon=True).start()
  try:
    return answers.get(timeout=_ANSWER_SECS)
  except queue.Empty:
    return f'no answer in {_ANSWER_SECS:g} s'


def _reason(error: requests.RequestException) -> str:
  """Returns the innermost words of an error."""
  if error.response is not None:
    return f'HTTP status {error.response.status_code}'
  cause = error.args[0] if error.args else error
  cause = getattr(cause, 'reason', cause)
  return str(cause).rsplit(': ', 1)[-1] or type(error).__name__
