"""Checks, before anything starts, that the address in a flag can be used."""

import os
import secrets

from distmnist.common import cli
from distmnist.storage import stores, urls


def check(name, url, is_written=True):
  """Checks that an address can be used; does nothing for a path.

  Args:
    name: str, the flag.
    url: str or None, its value.
    is_written: bool, whether this process must write and remove there, too.

  Raises:
    cli.UsageError: it cannot; cli.PassingError if that may pass.
  """
  if not url or not urls.is_remote(url):
    return
  probe = os.path.join(url, f'.probe_{secrets.token_hex(4)}')
  try:
    if is_written:
      stores.write(probe, b'probe')
    stores.list_entries(url)
    if is_written:
      stores.remove(probe)
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
