"""Hashes of keys: known values, even buckets, numbers that differ by key."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import key_hash


def test_a_text_has_the_fingerprint_that_it_has_everywhere(tf_session):
  found = tf_session.run(
    key_hash.find_fingerprints(tf.constant(['', 'user-1', 'user-2']))
  )
  # farmhash::Fingerprint64 of no byte, less 2^63 - 1.
  assert found[0] == 0x9AE16A3B2F90404F % (2**63 - 1)
  assert len(set(found)) == 3
  assert found.dtype == np.int64


def test_keys_that_follow_each_other_fill_buckets_evenly(tf_session):
  for keys in (np.arange(60_000), np.arange(60_000) * 60 - 2**62):
    buckets = tf_session.run(key_hash.find_buckets(tf.constant(keys), 60))
    counts = np.bincount(buckets, minlength=60)
    assert len(counts) == 60
    # The deviation is 32.
    assert 850 < counts.min() <= counts.max() < 1150


@pytest.mark.slow
def test_what_is_drawn_is_even_and_of_key_column_and_seed_alone(tf_session):
  keys = tf.constant(np.arange(-5000, 5000))
  drawn, again, other = tf_session.run(
    [
      key_hash.draw(keys, 4, 7),
      key_hash.draw(keys[::-1], 3, 7)[::-1],
      key_hash.draw(keys, 4, 8),
    ]
  )
  np.testing.assert_array_equal(drawn[:, :3], again)
  assert 0 < drawn.min() < 0.001 < 0.999 < drawn.max() < 1
  np.testing.assert_allclose(drawn.mean(0), 0.5, atol=0.02)
  np.testing.assert_allclose(drawn.var(0), 1 / 12, atol=0.005)
  both = np.concatenate([drawn, other], 1)
  correlations = np.corrcoef(both.T) - np.eye(8)
  assert np.abs(correlations).max() < 0.05
  # Nor do keys that follow each other depend on each other.
  assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.05
