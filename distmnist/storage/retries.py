"""Requests to a store, tried again while that may help.

A store that does not answer, or answers that it is overloaded, is asked again
for half a minute, with a line each time; a refusal is final at once. An answer
that takes long is reported, too: nothing else distinguishes a slow store from a
slow training. fsspec and the store's library are imported with the first
address.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from distmnist.storage import hdfs, urls

_log = logging.getLogger(__name__)
_Answer = TypeVar('_Answer')

# The pauses between two tries of a request, and of all else that may pass.
WAITS_SECS = (0.5, 1, 2, 4, 8, 16)
# A store that says nothing for this long does not answer.
_ANSWER_SECS = 20
_FINAL = (
  *(FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError),
  *(NotADirectoryError, ImportError, TypeError, ValueError),
)
# Some libraries raise them without their numbers.
_NUMBERS = {
  FileNotFoundError: errno.ENOENT,
  FileExistsError: errno.EEXIST,
  PermissionError: errno.EACCES,
  IsADirectoryError: errno.EISDIR,
  NotADirectoryError: errno.ENOTDIR,
}
_FINAL_WORDS = re.compile('Credentials|Profile|libhdfs|libjvm')
_FINAL_ERRNOS = (
  *(errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOSPC, errno.EMSGSIZE),
  errno.ENAMETOOLONG,
)
# libhdfs's number for an exception of Java that it has no number for.
_JAVA_ERRNO = 255
# An answer that takes this long is reported.
_SLOW_SECS = 10.0


def ask(
  url: str,
  do: Callable[[Any, str], _Answer],
  missing: str = 'there is no such object',
) -> _Answer:
  """Returns do(file system, path), which is retried while that may help.

  Args:
    url: the address of an object or a folder.
    do: called with fsspec's file system, and the path in it.
    missing: the reason that a FileNotFoundError is given.

  Raises:
    OSError: the store refuses, or does not answer; its reason is one line, and
      its errno that of the kind of error: EIO only if it does not answer.
  """
  waits = iter(WAITS_SECS)
  while True:
    start = time.monotonic()
    try:
      answer = do(*_open(url))
      secs = time.monotonic() - start
      if secs >= _SLOW_SECS:
        _log.info(f'{url}: the store has answered after {secs:.1f} s')
      return answer
    except Exception as error:
      reason = _explain(error, url, missing)
      is_final = _is_final(error)
      wait_secs = None if is_final else next(waits, None)
      if wait_secs is None:
        kind = type(error) if isinstance(error, _FINAL) else OSError
        kind = kind if issubclass(kind, OSError) else OSError
        number = errno.EINVAL if is_final else errno.EIO
        number = getattr(error, 'errno', None) or _NUMBERS.get(kind, number)
        raise kind(number, reason, url) from error
    _log.info(f'{url}: {reason}; trying again in {wait_secs:g} s')
    time.sleep(wait_secs)


def _open(url: str) -> tuple[Any, str]:
  """Returns (file system of fsspec or Hdfs, path in it) of an address."""
  scheme = url.partition('://')[0]
  options = {}
  if scheme == 's3':
    # One try per request: the library's own retries would be silent.
    options['config_kwargs'] = {
      'retries': {'total_max_attempts': 1},
      'connect_timeout': _ANSWER_SECS / 2,
      'read_timeout': _ANSWER_SECS,
    }
  import fsspec.core  # noqa: PLC0415  Half a second, only for addresses.

  fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
  if scheme == 's3':
    fs.retries = 1
  return hdfs.Hdfs(fs) if scheme == 'hdfs' else fs, path


def _is_final(error: Exception) -> bool:
  if isinstance(error, OSError) and error.errno in _FINAL_ERRNOS:
    return True
  # Each library has its own types of errors.
  words = f'{type(error).__name__} {error}'
  return isinstance(error, _FINAL) or bool(_FINAL_WORDS.search(words))


def is_of_bucket(error: Exception) -> bool:
  """Whether a FileNotFoundError is about the bucket, not what is in it."""
  return 'bucket' in str(error).partition('/')[0].lower()


def _explain(error: Exception, url: str, missing: str) -> str:
  """Returns what went wrong, in one line."""
  scheme = url.partition('://')[0]
  if isinstance(error, ImportError):
    extra = urls.EXTRAS.get(scheme, scheme)
    return f"{scheme}:// needs a library: pip install 'distmnist[{extra}]'"
  if 'libhdfs' in str(error) or 'libjvm' in str(error):
    return (
      "hdfs:// needs Java and Hadoop's libhdfs on this machine: set JAVA_HOME, "
      'HADOOP_HOME and CLASSPATH (to what `hadoop classpath --glob` prints)'
    )
  if getattr(error, 'errno', None) == _JAVA_ERRNO:
    return 'HDFS does not answer, or refuses: what Java says stands above'
  reason = getattr(error, 'strerror', None) or str(error)
  reason = reason.strip() or type(error).__name__
  if isinstance(error, FileNotFoundError) and not is_of_bucket(error):
    return missing
  return reason.splitlines()[0]
