"""How far each unit of a round is, noted on its ps; see shard_tokens.py.

Three numbers per unit:

  begun    the global_step that the unit is about to reach.
  applied  the global_step that the unit has reached. A round that another
           chief restarts leaves out the units that are ahead: none is
           updated twice in a round.
  handed   the token of the round that the last token of the unit goes with.
           It is ahead of the current token if the unit is done and the round
           is not.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry


class UnitProgress:
  """The notes of all units, in their tables."""

  def __init__(self, units):
    """
    Args:
      units: unit_queues.UnitQueues.
    """
    self._units = units
    self._brought = {}

  def bring(self, token, place):
    """Returns int64 [2] at `place`: a token's global_step, and the token."""
    key = token.ref(), place
    if key not in self._brought:
      with tf.device(place), tf.control_dependencies(None):
        token = tf.identity(token)
        numbers = tf.stack([round_entry.step_of(token), token])
      self._brought[key] = numbers
    return self._brought[key]

  def begin(self, unit, token):
    """Returns whether a unit has to be updated in a round, bool.

    Also notes that this has begun.

    Args:
      unit: int.
      token: int64 scalar tensor, the one with which the round will end.
    """
    place = self._units.find_place(unit)
    with tf.device(place):
      step = self.bring(token, place)[0]
      begun = self._units.note(place, [_begun(unit)], [step])
      with tf.control_dependencies([begun]):
        applied = self._units.find(place, [_applied(unit)])
      return applied[0] < step

  def end(self, unit, numbers):
    """Returns the op that notes that a unit is updated and handed out.

    Args:
      unit: int.
      numbers: int64 tensor [2], as returned by `bring`.
    """
    place = self._units.find_place(unit)
    return self._units.note(place, [_applied(unit), _handed(unit)], numbers)

  def build_are_even(self, step):
    """Returns bool scalar tensors, one per ps: True if no unit is ahead there.

    Args:
      step: int64 scalar tensor, the global_step.
    """
    are_even = []
    for place in self._units.places:
      with tf.device(place):
        begun = self._units.find(place, self._keys(place, _begun))
        are_even.append(tf.reduce_all(begun <= step))
    return are_even

  def find_handed(self, place):
    """Returns `handed` of the units of a ps, int64 tensor."""
    return self._units.find(place, self._keys(place, _handed))

  def note_handed(self, place, token):
    """Returns the op that notes a token as `handed` for all units of a ps."""
    keys = self._keys(place, _handed)
    return self._units.note(place, keys, tf.fill([len(keys)], token))

  def reset(self, place, token):
    """Returns the op that sets the units of a ps to where a center begins.

    Args:
      place: str, the device of the ps.
      token: int64 scalar tensor, the first one of that center.
    """
    step = round_entry.step_of(token)
    keys = self._keys(place, _begun) + self._keys(place, _applied)
    return tf.group(
      self._units.note(place, keys, tf.fill([len(keys)], step)),
      self.note_handed(place, token),
    )

  def _keys(self, place, key):
    return list(map(key, self._units.places[place]))


def _begun(unit):
  return 3 * unit


def _applied(unit):
  return 3 * unit + 1


def _handed(unit):
  return 3 * unit + 2
