"""Hashes of keys: the same on every machine, whatever the number of ps."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

# How many fingerprints a text can have: whole numbers from 0 on.
_NUM_FINGERPRINTS = 2**63 - 1


def find_fingerprints(texts: tf.Tensor) -> tf.Tensor:
  """Returns farmhash's Fingerprint64 of strings, int64 in the same shape.

  The chance that two of n texts have the same one is n^2 / 2^64.
  """
  return tf.strings.to_hash_bucket_fast(texts, _NUM_FINGERPRINTS)


def find_buckets(keys: tf.Tensor, num_buckets: int) -> tf.Tensor:
  """Returns the bucket of each key, int64 [n] from 0 to num_buckets - 1."""
  return _scale(_mix(_to_unsigned(keys)), num_buckets)


def find_places(keys: tf.Tensor, num_places: int, salt: int) -> tf.Tensor:
  """Returns int64 [n] from 0 to num_places - 1: another hash for each salt."""
  hashes = _mix(_mix(_to_unsigned(keys)) + _constant(salt))
  return _scale(hashes, num_places)


def draw(keys: tf.Tensor, width: int, seed: int) -> tf.Tensor:
  """Draws numbers that depend only on the key, the column and the seed.

  Args:
    keys: int64 [n].
    seed: of 63 bits.

  Returns:
    float32 [n, width], uniform between 0 and 1, both ends excluded.
  """
  hashes = _mix(_mix(_to_unsigned(keys)) + _constant(seed))
  # The step of SplitMix64: its multiples are far from each other.
  steps = np.arange(width, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
  high = _shift(_mix(hashes[:, tf.newaxis] + tf.constant(steps)), 41)
  numbers = tf.cast(tf.bitcast(high, tf.int64), tf.float32)
  return (numbers + 0.5) * 2**-23


def _mix(x: tf.Tensor) -> tf.Tensor:
  """MurmurHash3's finaliser: no two of the 2^64 numbers become the same."""
  for factor in 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53:
    x = tf.bitwise.bitwise_xor(x, _shift(x, 33)) * _constant(factor)
  return tf.bitwise.bitwise_xor(x, _shift(x, 33))


def _scale(hashes: tf.Tensor, num: int) -> tf.Tensor:
  """Returns int64 [n] from 0 to num - 1, uniform if the hashes are."""
  return tf.bitcast(_shift(_shift(hashes, 32) * _constant(num), 32), tf.int64)


def _to_unsigned(keys: tf.Tensor) -> tf.Tensor:
  return tf.bitcast(keys, tf.uint64)


def _shift(x: tf.Tensor, bits: int) -> tf.Tensor:
  return tf.bitwise.right_shift(x, _constant(bits))


def _constant(number: int) -> tf.Tensor:
  return tf.constant(np.uint64(number))
