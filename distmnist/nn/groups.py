"""Groups of variables with an optimizer, a rate or a decay of their own.

A problem's module may have, and task.minimize() and fit() take,

  groups = {
    'wide/.*': {'optimizer': 'ftrl'},
    'head/.*': {'learning_rate': 10, 'weight_decay': 0},
  }

A key is a regular expression that matches the whole name of a variable, not
that of a shard or of a worker's copy; of several that match, the first counts.
What a group does not say is as for the others: `learning_rate` is a factor of
the scheduled rate, `optimizer` and `weight_decay` are as the flags of these
names.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.common import cli
from distmnist.nn import formulas
from distmnist.nn import optimizer as optimizer_lib
from distmnist.tables import shard_slices

_KEYS = 'learning_rate', 'optimizer', 'weight_decay'
# As what all of them become.
_LARGEST = float(np.finfo(np.float32).max)


class Group(NamedTuple):
  """What is said of some variables.

  Attributes:
    pattern: a regular expression for whole names.
    shown: how an error calls the group.
    factor: what the learning rate is multiplied by.
    optimizer: a value of --optimizer, or None for that of the others.
    weight_decay: as --weight_decay, or None for that of the others.
  """

  pattern: str
  shown: str
  factor: float = 1.0
  optimizer: str | None = None
  weight_decay: float | None = None


def parse(given: Any, where: str = 'groups') -> tuple[Group, ...]:
  """Returns the groups that a user gives, in their order.

  Args:
    given: a dict as above, or a tuple of Group as it is; None for none.
    where: how an error calls it.

  Raises:
    cli.UsageError: they are not as described above.
  """
  if given is None:
    return ()
  if isinstance(given, tuple) and all(isinstance(x, Group) for x in given):
    return given
  if not isinstance(given, dict):
    raise cli.UsageError(
      f'{where} is of type {type(given).__name__}: expected a dict, such as '
      "{'head/.*': {'learning_rate': 10}}"
    )
  return tuple(
    _parse_one(pattern, says, f'{where}[{pattern!r}]')
    for pattern, says in given.items()
  )


def _parse_one(pattern: Any, says: Any, shown: str) -> Group:
  try:
    re.compile(pattern)
  except (TypeError, re.error) as error:
    raise cli.UsageError(
      f'{shown}: the key is no regular expression: {error}'
    ) from error
  if not isinstance(pattern, str):
    raise cli.UsageError(f'{shown}: expected a str as the key')
  if not isinstance(says, dict) or not says:
    raise cli.UsageError(
      f'{shown} is {_show(says)}: expected a dict with some of '
      + ', '.join(_KEYS)
    )
  for key in says:
    if key not in _KEYS:
      raise cli.UsageError(
        f'{shown} has {key!r}: expected some of {", ".join(_KEYS)}'
      )
  name = says.get('optimizer')
  if 'optimizer' in says and name not in tuple(formulas.KINDS):
    raise cli.UsageError(
      f'{shown}: optimizer is {_show(name)}: expected one of '
      f'{", ".join(formulas.KINDS)}'
    )
  found = {
    key: _check_number(says[key], f'{shown}: {key}')
    for key in ('learning_rate', 'weight_decay')
    if key in says
  }
  return Group(
    pattern,
    shown,
    found.get('learning_rate', 1.0),
    name,
    found.get('weight_decay'),
  )


def _check_number(value: Any, shown: str) -> float:
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if not is_number or value < 0 or not value <= _LARGEST:
    raise cli.UsageError(
      f'{shown} is {_show(value)}: expected a finite number of 0 or more'
    )
  return float(value)


def _show(value: Any) -> str:
  return ' '.join(repr(value).split())[:60]


def find_name(variable: tf.Variable) -> str:
  """Returns the whole name of a center's variable, shard or worker's copy."""
  name, _, _ = shard_slices.find_place(variable)
  return graph_record.current().center_names.get(name, name)


def find(groups: Iterable[Group], name: str) -> Group | None:
  """Returns the group of the variable of a whole name, or None."""
  return next((g for g in groups if re.fullmatch(g.pattern, name)), None)


def check_used(groups: Sequence[Group], names: Iterable[str]) -> None:
  """Checks that each group has a variable.

  Args:
    groups: see `parse`.
    names: the whole names of all that is trained.

  Raises:
    cli.UsageError: all that the pattern of a group matches, if anything, is in
      groups before it.
  """
  names = sorted(names)
  used = {find(groups, name) for name in names}
  for group in groups:
    if group in used:
      continue
    matched = [name for name in names if re.fullmatch(group.pattern, name)]
    if matched:
      first = next(g for g in groups if re.fullmatch(g.pattern, matched[0]))
      raise cli.UsageError(
        f'{group.shown} has no variable left: {matched[0]} is in '
        f'{first.shown.rpartition(": ")[2]}, which comes before it: put the '
        'narrower pattern first, or leave one of them out'
      )
    raise cli.UsageError(
      f'{group.shown} matches the whole name of no variable that is trained: '
      f'they are {shorten(names)}'
    )


def shorten(names: Sequence[str], most: int = 8) -> str:
  """Returns names as a list for a line, of which `most` are shown."""
  more = len(names) - most
  shown = ', '.join(names[:most])
  return f'{shown} and {more} more' if more > 0 else shown


class GroupedOptimizer(tf.train.Optimizer):
  """Optimizers of one model, each of which moves variables of its own.

  Gradients are computed, and clipped by their global norm, for all variables
  together. The members then act one beside the other, and count as one update.

  Attributes:
    takes_all_norms: see optimizer.Optimizer.
  """

  def __init__(
    self,
    first: optimizer_lib.Optimizer,
    members: Iterable[optimizer_lib.Optimizer],
    choose: Callable[[tf.Variable], optimizer_lib.Optimizer],
  ) -> None:
    """
    Args:
      first: computes the gradients; a member.
      members: all that `choose` may return.
      choose: gives the one that moves a variable, a shard or a copy.
    """
    super().__init__(use_locking=False, name='Groups')
    self._first, self._choose = first, choose
    self.takes_all_norms = any(member.takes_all_norms for member in members)

  def compute_gradients(
    self, loss: tf.Tensor, *args: Any, **kwargs: Any
  ) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """See optimizer.Optimizer."""
    return self._first.compute_gradients(loss, *args, **kwargs)

  def apply_gradients(
    self,
    grads_and_vars: Iterable[tuple[Any, tf.Variable]],
    global_step: tf.Variable | None = None,
    name: str | None = None,
    apply_one: optimizer_lib.ApplyOne | None = None,
  ) -> tf.Operation:
    """See optimizer.Optimizer."""
    parts = {}
    for gradient, w in grads_and_vars:
      if gradient is not None:
        parts.setdefault(self._choose(w), []).append((gradient, w))
    with tf.name_scope(name, self.get_name()) as scope:
      ends = [
        member.apply_gradients(pairs, apply_one=apply_one)
        for member, pairs in (parts or {self._first: []}).items()
      ]
      return optimizer_lib.count_update(ends, global_step, scope)

  def list_slots(
    self, variable: tf.Variable
  ) -> list[tuple[formulas.Slot, tf.Variable]]:
    """See optimizer.Optimizer."""
    return self._choose(variable).list_slots(variable)
