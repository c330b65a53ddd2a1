"""first_rows: each key begins with its row, on its ps, and as if just seen."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.nn import layers
from distmnist.tables import first_rows, key_hash, key_map, new_rows
from tests.support import tables

N, WIDTH, CAPACITY = 200, 3, 300
_RNG = np.random.default_rng(2)
KEYS = _RNG.choice(2**40, N, replace=False) - 2**39
ROWS = _RNG.normal(size=[N, WIDTH]).astype(np.float32)
WORDS = np.array([f'wörd {key}' for key in KEYS])


def find_fingerprints(words):
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(key_hash.find_fingerprints(tf.constant(words)))


class Step(tables.KeyStep):
  """A step of a table that is given rows."""

  def __init__(self, member, made, dtype=tf.int64, optimizer='sgd'):
    super().__init__(member, made, WIDTH, optimizer, dtype)
    first_rows.build(self.slots.begin, member.cpu_device, of_all=False)

  def begin(self, session, sources=None):
    session.run(tf.global_variables_initializer())
    key_map.fill(session)
    first_rows.put_all(session, sources or {})

  def read(self, session):
    """Returns {key: its row}."""
    found = {}
    for part in self.parts:
      keys, rows = session.run([part.keys, part.rows])
      at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
      found |= {keys[i]: rows[i] for i in at}
    return found


def make(first, **settings):
  return layers.NewRows(CAPACITY, first=first, **settings)


@pytest.fixture(autouse=True)
def graph(set_flags):
  set_flags()
  with tf.Graph().as_default():
    yield


@pytest.fixture
def small_slices(monkeypatch):
  monkeypatch.setattr(first_rows.partial_names, 'SLICE_BYTES', 600)
  monkeypatch.setattr(first_rows, '_KEYS_AT_ONCE', 64)


@pytest.mark.usefixtures('small_slices')
@pytest.mark.parametrize(
  'num_ps, keys, dtype', [(1, WORDS, tf.string), (2, KEYS, tf.int64)]
)
@pytest.mark.slow
def test_each_key_has_its_row_on_its_ps(make_cluster, num_ps, keys, dtype):
  cluster, made = make_cluster(num_ps, 1), make((keys, ROWS))
  first_rows.check('user', made)
  step = Step(cluster.worker(0), made, dtype)
  known = KEYS if dtype == tf.int64 else find_fingerprints(WORDS)
  with tf.Session(cluster.servers[0].target) as session:
    step.begin(session)
    found = step.read(session)
    assert found.keys() == set(known.tolist())
    np.testing.assert_array_equal([found[key] for key in known], ROWS)
    np.testing.assert_array_equal(step.run(session, keys[5:9]), ROWS[5:9])
    np.testing.assert_array_equal(
      step.run(session, keys[8:3:-1])[:4], ROWS[8:4:-1] + 1
    )
    made_now = sum(
      counts[:, 0].sum() - new_rows.NUM_RESERVED * len(counts)
      for counts in session.run([part.counts for part in step.parts])
    )
    assert made_now == N


def alone(made, optimizer='sgd'):
  return Step(cluster_lib.Cluster(), made, optimizer=optimizer)


@pytest.mark.slow
def test_what_lies_beside_a_row_begins_with_it(tf_session):
  step = alone(make((KEYS, ROWS)), 'ftrl')
  step.begin(tf_session)
  before = step.read(tf_session)
  step.run(tf_session, KEYS[:1])
  after = step.read(tf_session)
  # A step of ftrl keeps what it begins with: it computes anew from its sums.
  n, rate = 0.1, 1.0
  z = -np.sqrt(n) * ROWS[0] / rate
  z = z - 1 - (np.sqrt(n + 1) - np.sqrt(n)) / rate * ROWS[0]
  np.testing.assert_allclose(after[KEYS[0]], -z / np.sqrt(n + 1), rtol=1e-5)
  np.testing.assert_array_equal(after[KEYS[1]], before[KEYS[1]])


@pytest.mark.slow
def test_a_given_key_needs_no_sightings_and_others_do(tf_session):
  step = alone(make((KEYS, ROWS), min_sightings=3, unseen_steps=2))
  step.begin(tf_session)
  np.testing.assert_array_equal(step.run(tf_session, KEYS[:2]), ROWS[:2])
  step.run(tf_session, [17])
  assert step.read(tf_session).keys() == set(KEYS.tolist())
  for _ in range(2):
    step.run(tf_session, [17])
  assert 17 in step.read(tf_session)


@pytest.mark.slow
def test_another_source_takes_the_place_of_the_arrays(tf_session):
  step = alone(make((KEYS, ROWS)))
  other = first_rows.Given(new_rows.First(KEYS[:7], ROWS[:7] + 1))
  other.read_shared = lambda: np.full([new_rows.NUM_BUCKETS, WIDTH], 5.0)
  step.begin(tf_session, {'user': other})
  found = step.read(tf_session)
  assert found.keys() == set(KEYS[:7].tolist())
  np.testing.assert_array_equal(found[KEYS[3]], ROWS[3] + 1)
  [part] = step.parts
  rows = tf_session.run(part.rows)
  in_bucket = part.new_rows.rows_in_bucket
  assert (rows[new_rows.COMMON_ROW :: in_bucket] == 5).all()
  assert (rows[new_rows.CLEAN_ROW :: in_bucket] == 0).all()


def change(values, at, value):
  changed = values.copy()
  changed[at] = value
  return changed


@pytest.mark.slow
@pytest.mark.usefixtures('small_slices')
@pytest.mark.parametrize(
  'keys, rows, named',
  [
    (change(KEYS, 150, KEYS[3]), ROWS, 'key 3 and key 150 '),
    (change(WORDS, 150, WORDS[3]), ROWS, 'key 3 and key 150 '),
    (KEYS, change(ROWS, (170, 1), np.nan), 'row 170 of first is not finite'),
    (KEYS, change(ROWS.astype(float), 199, 1e300), 'row 199 .* not finite'),
    (change(KEYS, 160, -(2**63)), ROWS, 'key 160 of first is .*-922337203'),
    (change(abs(KEYS).astype(np.uint64), 9, 2**63), ROWS, 'key 9 .* is 922337'),
    (change(WORDS.astype(object), 9, None), ROWS, 'key 9 of first is None'),
  ],
)
def test_what_is_wrong_is_one_line(keys, rows, named):
  with pytest.raises(ValueError, match=f"^the table 'user': .*{named}") as why:
    first_rows.check('user', make((keys, rows)))
  assert '\n' not in str(why.value)


def test_a_part_without_room_is_one_line():
  with tf.Graph().as_default(), tf.Session() as session:
    many = tf.constant(np.arange(10**5))
    buckets = session.run(key_hash.find_buckets(many, new_rows.NUM_BUCKETS))
  keys = np.flatnonzero(buckets == 7)[:N]
  with pytest.raises(ValueError, match='larger capacity than 300'):
    first_rows.check('user', make((keys, ROWS)))


@pytest.mark.parametrize(
  'first, dtype, named',
  [
    ((KEYS, ROWS[1:]), tf.int64, '199 rows of 200 keys'),
    ((KEYS, ROWS[:, 1:]), tf.int64, 'rows of width 3, not 2'),
    ((KEYS, ROWS.astype(int)), tf.int64, 'of floats, not int64'),
    ((KEYS.astype(float), ROWS), tf.int64, 'whole numbers.* not float64'),
    ((WORDS, ROWS), tf.int64, 'are whole numbers'),
    ((KEYS, ROWS), tf.string, 'are text'),
    ((KEYS[:, None], ROWS), tf.int64, r'\[200, 1\]'),
    ((np.arange(301), np.zeros([301, 3])), tf.int64, '301 keys .*, 300'),
  ],
)
def test_what_does_not_fit_a_table_is_said_without_reading(first, dtype, named):
  with pytest.raises(ValueError, match=f"^embedding 'user': first: .*{named}"):
    layers.embedding(tf.placeholder(dtype, [None]), make(first), WIDTH, 'user')


@pytest.mark.parametrize('first', [KEYS, (KEYS,), 5, 'ab'])
def test_what_is_no_pair_is_refused(first):
  with pytest.raises(ValueError, match='expected first='):
    layers.NewRows(5, first=first)


@pytest.mark.slow
def test_arrays_stay_mapped_and_features_share_them(tmp_path):
  np.save(tmp_path / 'rows.npy', ROWS)
  rows = np.load(tmp_path / 'rows.npy', mmap_mode='r')
  look_up = functools.partial(layers.embedding, width=WIDTH, name='user')
  ids = tf.constant([1], tf.int64)
  made = make((KEYS, rows))
  assert np.shares_memory(made.first.rows, rows)
  for _ in range(2):
    # Views that are made anew, as in build().
    look_up(ids, make((KEYS[:150], rows[:150])))
  for other in (rows[:150].copy(), rows[1:151], rows[:300:2], rows[149::-1]):
    with pytest.raises(ValueError, match='the same two arrays'):
      look_up(ids, make((KEYS[: len(other)], other)))
  with pytest.raises(ValueError, match='as the table of this name has'):
    look_up(ids, layers.NewRows(CAPACITY))
