"""Flags that do not go together: tables of a flag, a condition, what to say.

A room has a table of what it refuses, and a program calls `refuse` with those
of all that it uses. A check that is an algorithm (it reads a file, counts
epochs, asks a store) is a function beside what it checks instead.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from absl import flags

from distmnist.common import cli

FLAGS = flags.FLAGS


class Refusal(NamedTuple):
  """A row.

  Attributes:
    flag: the name of the flag that is wrong, or callable(facts) -> how it is
      given, such as '--strategy=ssp', where its value is not what counts.
    is_wrong: callable(facts) -> whether it does not go with the rest.
    says: what follows the flag as it was given: why not, what is expected and
      what to do; or callable(facts) -> that.
  """

  flag: str | Callable[[Any], str]
  is_wrong: Callable[[Any], Any]
  says: str | Callable[[Any], str]


def refuse(rows: Iterable[Refusal], **facts: Any) -> None:
  """Checks flags against a table, row by row in its order.

  Args:
    rows: the table.
    **facts: what its rows need to know besides flags; an attribute each of what
      they are called with.

  Raises:
    cli.UsageError: the text of the first row that is wrong.
  """
  if text := find(rows, **facts):
    raise cli.UsageError(text)


def find(rows: Iterable[Refusal], **facts: Any) -> str:
  """Returns the text of the first row that is wrong, or ''; see `refuse`."""
  given = types.SimpleNamespace(**facts)
  for row in rows:
    if row.is_wrong(given):
      flag = row.flag(given) if callable(row.flag) else show(row.flag)
      return flag + (row.says(given) if callable(row.says) else row.says)
  return ''


def show(name: str) -> str:
  """Returns a flag as it was given, such as --weight_decay=0.1 or --noapply."""
  value = FLAGS[name].value
  if value is None:
    return f'--{name}'
  if isinstance(value, bool):
    return f'--{"" if value else "no"}{name}'
  if isinstance(value, float):
    return f'--{name}={value:g}'
  return f'--{name}={",".join(value) if isinstance(value, list) else value}'
