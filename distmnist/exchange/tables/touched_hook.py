"""Clears the marks of touched rows when a center has its values."""

import tensorflow.compat.v1 as tf

from distmnist.exchange import strategy
from distmnist.exchange.tables import touched_rows


class TouchedHook(strategy.CenterHook):
  """The chief's hook; without it there are no marks to set."""

  def __init__(self):
    nobody = tf.constant(touched_rows.NO_CHIEF, tf.int64)
    self._clear = [t.build_clear(nobody) for t in touched_rows.get_all()]

  def on_new_center(self, session):
    session.run(self._clear)
