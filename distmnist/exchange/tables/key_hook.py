"""Fills the maps of keys on the ps when a center has its values."""

from distmnist.exchange import strategy
from distmnist.exchange.tables import key_map


class KeyHook(strategy.CenterHook):
  """The chief's hook; see key_map.fill."""

  def on_new_center(self, session):
    key_map.fill(session)
