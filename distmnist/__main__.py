"""The programs by one name: distmnist PROGRAM, or python -m distmnist."""

from __future__ import annotations

import importlib
import sys

from distmnist.common import output
from distmnist.common.names import PACKAGE, PROGRAMS


def list_programs() -> str:
  """Returns the programs, one a line."""
  width = max(map(len, PROGRAMS))
  lines = [f'  {name:{width}}  {what}' for name, what in PROGRAMS.items()]
  return '\n'.join(
    [
      f'usage: {PACKAGE} PROGRAM [its arguments]',
      '',
      *lines,
      '',
      f'{PACKAGE} PROGRAM --help explains one; {PACKAGE}-PROGRAM and '
      f'python -m {PACKAGE}.PROGRAM do the same.',
    ]
  )


def run() -> None:
  """Runs the program that the first argument names; without one, lists all."""
  name, *words = sys.argv[1:] or ['--help']
  if name in ('-h', '--help', 'help'):
    try:
      print(list_programs(), flush=True)
    except BrokenPipeError:  # As after `... | head`.
      output.discard(sys.stdout)
      sys.exit(141)
    return
  if name not in PROGRAMS:
    print(
      f'{PACKAGE}: error: {name!r} is no program: expected one of '
      f'{", ".join(PROGRAMS)} ({PACKAGE} --help tells what each does)',
      file=sys.stderr,
    )
    sys.exit(2)
  sys.argv = [f'{PACKAGE}-{name}', *words]
  importlib.import_module(f'{PACKAGE}.{name}').run()


if __name__ == '__main__':
  run()
