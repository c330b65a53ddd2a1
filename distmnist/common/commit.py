"""The commit of distmnist that runs: its clone's, or the one it was built from.

It stands alone, as setup.py runs it to record the commit in what it builds.
"""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess

# In the package, where it was built; in a clone there is none.
FILE = 'commit.txt'
# A file system that hangs is no reason to wait.
_SECS = 10


@functools.cache
def find(package: str | os.PathLike) -> str | None:
  """Returns a hash, perhaps with ' and changes'; None if it is not known.

  Args:
    package: the folder of the package.
  """
  package = pathlib.Path(package)
  # An installed package may lie in the clone of something else.
  if (package.parent / '.git').exists():
    return _ask_git(package)
  try:
    return (package / FILE).read_text(encoding='utf-8').strip() or None
  except OSError:
    return None


def _ask_git(package: pathlib.Path) -> str | None:
  # A hook of git sets variables that name another clone.
  env = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  command = ['git', '-C', str(package), 'status', '--porcelain=v2', '--branch']
  try:
    done = subprocess.run(
      [*command, '--untracked-files=normal', '--', '.'],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      env={**env, 'GIT_OPTIONAL_LOCKS': '0'},
      timeout=_SECS,
    )
  except (OSError, subprocess.TimeoutExpired):
    return None
  head, found = '# branch.oid ', None
  changes = ''
  for line in done.stdout.splitlines():
    if line.startswith(head):
      found = line.removeprefix(head)
    elif not line.startswith('#'):
      changes = ' and changes'
  return found and found + changes
