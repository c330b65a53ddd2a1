"""Runs `distmnist.launch` or `sweep` with flags in any order, as from Python.

common/child_program.py starts it. Flags that the program knows go before the
--, the others after it; so do those of a --flagfile.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable

from absl import flags

from distmnist.common import child_program, command_line


def sort(words: Iterable[str]) -> list[str]:
  """Returns the words in the order in which launch and sweep take them."""
  ours: list[str] = []
  others: list[str] = []
  # One that cannot be read is left to the program, which says so.
  with contextlib.suppress(command_line.FlagFileError):
    words = command_line.expand(words)
  for word in words:
    name = word.removeprefix('--').partition('=')[0]
    # The words that say what a sweep tries are not flags.
    is_known = {name, name.removeprefix('no')} & {*flags.FLAGS}
    is_ours = is_known or not word.startswith('--')
    (ours if is_ours else others).append(word)
  return [*ours, '--', *others]


if __name__ == '__main__':
  program = importlib.import_module(f'distmnist.{sys.argv[1]}')
  sys.argv[1:] = sort(child_program.read_words())
  program.run()
