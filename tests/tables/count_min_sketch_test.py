"""count_min_sketch: no key is counted too low, and what was long ago fades."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import count_min_sketch


@pytest.fixture
def count(tf_session):
  """Returns count(keys) -> counted, of a table of 250 rows."""
  rows = types.SimpleNamespace(
    shape=[250, 2], op=types.SimpleNamespace(name='user/rows')
  )
  seen = count_min_sketch.CountMinSketch(rows)
  keys = tf.placeholder(tf.int64, [None])
  counted = seen.count(keys)
  tf_session.run(seen.reset())
  return lambda given: tf_session.run(counted, {keys: given})


@pytest.mark.slow
def test_sightings_are_counted(count):
  keys = np.random.default_rng(0).integers(-(2**62), 2**62, 90)
  for times in range(1, 6):
    counted = count(keys)
    assert (counted >= times).all()
    # Few of 1000 counters are those of two keys, and hardly both of a key.
    assert (counted == times).mean() > 0.95
  assert count([]).tolist() == []


@pytest.mark.slow
def test_what_was_seen_long_ago_fades(count):
  often, others = [3], np.arange(100, 590)
  for _ in range(20):
    last = count(often)[0]
  assert last == 20
  count(others)
  count(others)  # 1000 were counted: all are halved.
  assert 11 <= count(often)[0] <= 13
