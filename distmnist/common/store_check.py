"""Checks, before anything starts, that the address in a flag can be used."""

import logging
import os
import secrets

from distmnist.common import cli
from distmnist.storage import paths, urls

_log = logging.getLogger(__name__)


def check(
  name: str, url: str | None, is_written: bool = True, is_owned: bool = False
) -> None:
  """Checks that an address can be used; does nothing for a path.

  Args:
    name: the flag.
    url: its value.
    is_written: whether this process must write and remove there, too.
    is_owned: whether it is to be the one owner of what is there, too: a store
      that cannot tell owners apart is reported in a line.

  Raises:
    cli.UsageError: it cannot; cli.PassingError if that may pass.
  """
  if not url or not urls.is_remote(url):
    return
  probe = os.path.join(url, f'.probe_{secrets.token_hex(4)}')
  try:
    if is_written:
      paths.write(probe, b'probe')
    paths.list_names(url)
    if is_owned and paths.create(probe, b'another'):
      _log.info(
        f'--{name}={url}: this store creates an object even where one exists, '
        'so of two launchers or chiefs that start here at the same moment the '
        'last to write goes on, and the other ends with code 3 when it finds '
        'out, within seconds; start them one after the other'
      )
    if is_written:
      paths.remove(probe)
  except OSError as error:
    advice = ''
    if isinstance(error, (FileNotFoundError, PermissionError)):
      rights = 'list, read, write and delete' if is_written else 'list and read'
      advice = (
        '; give a bucket that exists, and credentials with the right to '
        f'{rights} in it'
      )
    raise cli.choose_error(error, cli.UsageError)(
      f'--{name}={url} cannot be used: {error.strerror}{advice}'
    ) from error
