"""What a model computes with the center, read in the midst of a training.

In a training graph the model computes with what its rule gives it: a value that
the step has pulled, or a copy that the worker trains on its own. Here both are
given the values of the center, for one session.run. Without a ps the model
computes with the center itself, which then has its moving averages meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from distmnist.training import averages


class CenterReader:
  """Runs parts of a training graph with the center's values."""

  def __init__(
    self, views: Mapping[str, Any], center: Sequence[tf.Variable]
  ) -> None:
    """
    Args:
      views: for the name of each of the model's variables what the model got:
        a tensor that is pulled, a variable of this worker's own, or the
        center's itself.
      center: the center's variables, shards of them, and moving averages.
    """
    self._center = list(center)
    local = tf.local_variables()
    self._pulled = {n: x for n, x in views.items() if isinstance(x, tf.Tensor)}
    self._copies = {
      n: x for n, x in views.items() if any(x is v for v in local)
    }
    self._averaged, self._to_averages = [], []
    if not (self._pulled or self._copies):
      self._average_in_place()

  def _average_in_place(self) -> None:
    """Builds what gives the center's variables their moving averages."""
    known = {v.op.name: v for v in self._center}
    for name, average in averages.put_in_place(known).items():
      if average is not known[name]:
        variable = known[name]
        self._averaged.append(variable)
        with tf.device(variable.device):
          set_it = variable.assign(average.read_value(), read_value=False)
        self._to_averages.append(set_it)

  def run(
    self, session: tf.Session, fetches: Any, feed_dict: Mapping | None = None
  ) -> Any:
    """Returns `fetches`; what this worker has of its own is as it was."""
    names = {*self._pulled, *self._copies}
    if not names:
      return self._run_in_place(session, fetches, feed_dict)
    values = averages.put_in_place(
      checkpoints.fetch_whole(session, self._center)
    )
    # What is fetched itself is pulled: it cannot be fed as well.
    wanted = tf.nest.flatten(fetches)
    fed = {
      view: values[name]
      for name, view in self._pulled.items()
      if not any(view is x for x in wanted)
    }
    kept = session.run(self._copies)
    self._set(session, values)
    try:
      return session.run(fetches, {**fed, **(feed_dict or {})})
    finally:
      self._set(session, kept)

  def _run_in_place(
    self, session: tf.Session, fetches: Any, feed_dict: Mapping | None
  ) -> Any:
    if not self._averaged:
      return session.run(fetches, feed_dict)
    kept = session.run(self._averaged)
    session.run(self._to_averages)
    try:
      return session.run(fetches, feed_dict)
    finally:
      for variable, value in zip(self._averaged, kept, strict=True):
        # One by one: several may begin with the same tensor.
        first = variable.initializer
        session.run(first, {first.inputs[1]: value})

  def _set(self, session: tf.Session, values: Mapping[str, Any]) -> None:
    copies = self._copies.items()
    session.run(
      [v.initializer for _, v in copies],
      {v.initializer.inputs[1]: values[name] for name, v in copies},
    )
