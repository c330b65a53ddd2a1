"""groups= of fit: variables of a Keras model with an optimizer of their own.

A key matches the whole path that Keras gives a variable, or that path without
the name of the model itself: of `sequential/dense/kernel` also `dense/kernel`.
The tasks are told the variables one by one, and by their places: Keras numbers
layers as a process makes them, so each process has other paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distmnist.common import cli

if TYPE_CHECKING:
  import keras

  from distmnist.nn import groups as groups_lib


def parse(
  given: Mapping[str, Mapping[str, Any]] | None,
) -> tuple[groups_lib.Group, ...]:
  """Returns the groups that a caller of fit gives.

  Raises:
    ValueError: they are not as docs/your_own_model.md has them.
  """
  if given is None:
    return ()
  # With a Keras model in hand, TensorFlow is there.
  from distmnist.nn import groups as groups_lib  # noqa: PLC0415

  try:
    return groups_lib.parse(given, 'groups')
  except cli.UsageError as error:
    raise ValueError(str(error)) from error


def choose(
  groups: tuple[groups_lib.Group, ...], model: keras.Model
) -> list[groups_lib.Group | None]:
  """Returns the group of each trainable variable of a model that is built.

  Raises:
    ValueError: a group has none of them.
  """
  if not groups:
    return [None] * len(model.trainable_variables)
  from distmnist.nn import groups as groups_lib  # noqa: PLC0415  As above.

  shown = []
  for variable in model.trainable_variables:
    paths = variable.path.removeprefix(f'{model.name}/'), variable.path
    found = [path for path in paths if groups_lib.find(groups, path)]
    shown.append((found or paths)[0])
  try:
    groups_lib.check_used(groups, shown)
  except cli.UsageError as error:
    raise ValueError(str(error)) from error
  return [groups_lib.find(groups, path) for path in shown]


def find_places(
  chosen: list[groups_lib.Group | None],
) -> dict[groups_lib.Group, list[int]]:
  """Returns the places of each group's variables in what `choose` returns."""
  found: dict[groups_lib.Group, list[int]] = {}
  for place, group in enumerate(chosen):
    if group:
      found.setdefault(group, []).append(place)
  return found
