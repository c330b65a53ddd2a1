"""Shows what each task of a run does, live or at its end, from any shell.

  python -m distmnist.status --logdir=logs/run

It reads what the tasks write into the log directory, and needs nothing else:
no launcher, no port. Any host that sees the folder can ask.
"""

from __future__ import annotations

from distmnist.common import cli
from distmnist.logdir import find_run
from distmnist.watching import table_text

_FIRST_FLAGS = ('logdir',)


def main() -> None:
  """Prints a line about the run and a row per task."""
  found = find_run.from_flags()
  print(table_text.describe_run(found.logdir, found.state))
  print(table_text.format_table(found.state.make_rows(), found.state.unit))


def run() -> None:
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
