"""Rows are made once for a key, in races too, and never more than there are."""

import functools
import pathlib
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.data import seeds
from distmnist.nn import layers
from distmnist.tables import (
  key_hash,
  key_map,
  new_rows,
  row_reuse,
  sparse_table,
  table_saver,
)
from tests.support import tables

WIDTH = 2


class Step(tables.KeyStep):
  """A step of a table that makes rows."""

  def __init__(self, member, capacity, optimizer='sgd', **settings):
    made = layers.NewRows(capacity, **settings)
    super().__init__(member, made, WIDTH, optimizer)

  def begin(self, session):
    session.run(tf.global_variables_initializer())
    key_map.fill(session)

  def read(self, session):
    """Returns [{key: [row, and what is beside it]}] of each ps."""
    found = []
    for part in self.parts:
      prefix = f'{part.rows.op.name}/'
      beside = [
        v for v in tf.global_variables() if v.op.name.startswith(prefix)
      ]
      keys, *values = session.run([part.keys, part.rows, *beside])
      at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
      assert len(set(keys[at])) == len(at)
      found.append({keys[i]: [v[i].tolist() for v in values] for i in at})
    return found


@functools.cache
def build_first():
  """Returns (a session, its placeholder of keys, their first values)."""
  with tf.Graph().as_default():
    start = new_rows.Start(
      new_rows.NewRows(1), 'text', tf.random_uniform_initializer(-1, 1)
    )
    seeds.set_seed(3)
    seed = seeds.derive_first('user/rows')
    keys = tf.placeholder(tf.int64, [None])
    return tf.Session(), keys, start.make_rows(keys, WIDTH, seed)


def find_added(keys, rows):
  """Returns what was added to the first values of keys, whole numbers."""
  session, fed, values = build_first()
  first = session.run(values, {fed: keys})
  added = rows - first * WIDTH**-0.5
  np.testing.assert_allclose(added, np.round(added), atol=1e-4)
  return np.round(added)


@pytest.mark.slow
def test_a_key_gets_one_row_when_all_workers_see_it_first(make_cluster):
  num_ps, num_steps = 3, 20
  cluster = make_cluster(num_ps, 3)
  barrier = threading.Barrier(3, timeout=60)
  keys = np.random.default_rng(1).integers(-(2**62), 2**62, [num_steps, 100])

  def work(index):
    step = Step(cluster.worker(index), 5000)
    with tf.Session(cluster.servers[index].target) as session:
      if not index:
        step.begin(session)
      for part in keys:
        barrier.wait()
        step.run(session, part)
      barrier.wait()
      counts = session.run([part.counts for part in step.parts])
      return (
        step.read(session),
        counts,
        session.run(step.rows, {step.keys: keys.reshape(-1)}),
      )

  results = cluster.run_workers(work)
  found, counts, rows = results[0]
  assert all(result[0] == found for result in results)
  together = {k: v[0] for part in found for k, v in part.items()}
  assert together.keys() == set(keys.reshape(-1))
  # Pushes of 1 arrived in each, on what the key and the seed say: three, or
  # fewer, as one without a lock may be lost to another of the same moment.
  added = find_added(keys.reshape(-1), rows)
  assert set(added.reshape(-1)) <= {1, 2, 3}
  used = sum((part[:, 0] - new_rows.NUM_RESERVED).sum() for part in counts)
  assert used == keys.size
  assert not any(part[:, 1].any() for part in counts)
  owned = [
    {60 * (i + 1) // num_ps for i in range(num_ps)},
    {sum(len(part) for part in counts[: i + 1]) for i in range(num_ps)},
  ]
  assert owned[0] == owned[1]


@pytest.mark.slow
def test_keys_without_a_row_left_share_that_of_their_bucket(make_cluster):
  cluster = make_cluster(2, 1)
  with tf.Graph().as_default():
    step = Step(cluster.worker(0), 1)
    room = new_rows.NewRows(1).rows_in_bucket - new_rows.NUM_RESERVED
    keys = np.arange(2000)
    with tf.Session(cluster.servers[0].target) as session:
      step.begin(session)
      buckets = session.run(key_hash.find_buckets(tf.constant(keys), 60))
      sizes = np.bincount(buckets)
      assert sizes.min() > room
      step.run(session, keys)
      rows = step.run(session, keys)
      gradients = session.run(step.gradients, {step.keys: keys})
      counts = np.concatenate(session.run([part.counts for part in step.parts]))
      found = step.read(session)
  with_row = {k for part in found for k in part}
  assert len(with_row) == 60 * room
  assert (counts[:, 0] == room + new_rows.NUM_RESERVED).all()
  # Of three lookups.
  assert (counts[:, 1] == 3 * (sizes - room)).all()
  # The shared row began with zeros, and each of its keys has added 1.
  for key in set(keys) - with_row:
    assert rows[key].tolist() == [sizes[buckets[key]] - room] * WIDTH
  for values, indices in gradients:
    assert (np.diff(indices) > 0).all()
    is_shared = indices % new_rows.NewRows(1).rows_in_bucket == 0
    assert (values[~is_shared] == -1).all()
  shared = np.concatenate(
    [v[i % new_rows.NewRows(1).rows_in_bucket == 0] for v, i in gradients]
  )
  assert sorted(-shared[:, 0]) == sorted(sizes - room)


@pytest.mark.slow
def test_a_row_that_was_another_keys_begins_anew(tf_session):
  step = Step(cluster_lib.Cluster(), 10, 'rmsprop')
  step.begin(tf_session)
  before = step.run(tf_session, [5, 7])
  tf_session.run(step.apply, {step.keys: [5]})
  [found] = step.read(tf_session)
  # A save that reads keys first may have rows and moments of keys that it has
  # not; so may a table whose keys are restored.
  tf_session.run(step.parts[0].keys.initializer)
  key_map.fill(tf_session)
  again = step.run(tf_session, [5, 7])
  np.testing.assert_array_equal(again, before)
  tf_session.run(step.apply, {step.keys: [5]})
  assert step.read(tf_session) == [found]


@pytest.mark.slow
def test_a_push_leaves_rows_that_are_another_keys_by_now(tf_session):
  step = Step(cluster_lib.Cluster(), 10)
  step.begin(tf_session)
  step.run(tf_session, [5, 7])
  [before] = step.read(tf_session)
  [[kept]] = step.center.rows.exchanges[0]._kept
  _, keys = kept.owned
  in_order = tf_session.run(keys, {step.keys: [5, 7]})
  assert sorted(in_order) == [5, 7]
  # What it saw when it pulled.
  at_pull = np.where(in_order == 5, 8, in_order)
  tf_session.run(step.apply, {step.keys: [5, 7], keys: at_pull})
  [after] = step.read(tf_session)
  assert after[5] == before[5]
  np.testing.assert_allclose(after[7][0], np.array(before[7][0]) + 1)


@pytest.mark.slow
def test_without_a_new_key_nothing_is_made(tf_session):
  step = Step(cluster_lib.Cluster(), 10)
  step.begin(tf_session)
  assert step.run(tf_session, []).shape == (0, WIDTH)
  step.run(tf_session, [3, 3])
  [made] = [
    op
    for op in tf.get_default_graph().get_operations()
    if op.type == 'BatchFunction'
  ]
  numbers = tf_session.run([made.inputs[0], made.outputs[0]], {step.keys: [3]})
  assert [x.size for x in numbers] == [0, 0]
  assert {v.op.name for v in tf.get_collection(sparse_table.TABLES)} == {
    'user/rows',
    'user/keys',
  }


@pytest.mark.slow
def test_no_thread_wakes_up_for_a_table_that_makes_no_rows(tf_session):
  step = Step(cluster_lib.Cluster(), 10)
  step.begin(tf_session)
  step.run(tf_session, [5])
  names = [
    path.read_text() for path in pathlib.Path('/proc/self/task').glob('*/comm')
  ]
  assert not [name for name in names if name.startswith('batch_threads')]


def make_step(session, **settings):
  """Returns a Step of a table of 10, and 40 keys of one bucket."""
  step = Step(cluster_lib.Cluster(), 10, **settings)
  step.begin(session)
  keys = np.arange(5000)
  buckets = session.run(key_hash.find_buckets(tf.constant(keys), 60))
  return step, keys[buckets == 7][:40]


@pytest.mark.slow
def test_a_key_has_a_row_once_it_was_seen_often_enough(tf_session):
  step, [rare, often, *_] = make_step(tf_session, min_sightings=3)
  for keys in ([often, often, rare], [often]):
    step.run(tf_session, keys)
    assert step.read(tf_session) == [{}]
  # Until now they had one row, to which each of four lookups has added.
  rows = step.run(tf_session, [rare])
  assert rows.tolist() == [[4.0] * WIDTH]
  step.run(tf_session, [often])
  [found] = step.read(tf_session)
  assert found.keys() == {often}
  assert not step.run(tf_session, [often]).tolist()[0][0].is_integer()
  # It is not counted as one for which there is no room.
  [counts] = tf_session.run([part.counts for part in step.parts])
  assert not counts[:, 1].any()


@pytest.mark.slow
def test_a_key_takes_the_row_of_one_not_seen_for_long(tf_session):
  step, keys = make_step(
    tf_session,
    optimizer='rmsprop',
    unseen_steps=40,
  )
  room = new_rows.NewRows(10).rows_in_bucket - new_rows.NUM_RESERVED
  old, new = keys[:room], keys[room:]
  first = step.run(tf_session, old)
  once = step.read(tf_session)[0][old[0]][1:]
  for _ in range(19):
    step.run(tf_session, old[1:])
    step.run(tf_session, [new[0]])  # There is no room yet.
  step.run(tf_session, old[1:])
  [before] = step.read(tf_session)
  assert before.keys() == set(old)
  step.run(tf_session, new[:1])
  [after] = step.read(tf_session)
  assert after.keys() == {new[0], *old[1:]}
  assert [after[key] for key in old[1:]] == [before[key] for key in old[1:]]
  # It begins as any other, whatever was learnt for the key before it.
  assert after[new[0]][1:] == once
  [counts] = tf_session.run([part.counts for part in step.parts])
  assert counts.sum(0).tolist() == [room + 60 * new_rows.NUM_RESERVED, 19, 1]
  # The key that has lost its row begins anew in that of its bucket.
  assert step.run(tf_session, old[:1]).tolist() != first[:1].tolist()
  for _ in range(40):
    step.run(tf_session, [])
  # All are old now, and come at once.
  step.run(tf_session, keys)
  [last] = step.read(tf_session)
  assert len(last) == room and last.keys() == after.keys()
  for _ in range(40):
    step.run(tf_session, [])
  with row_reuse.held(tf_session):
    step.run(tf_session, new[1:])
  assert step.read(tf_session)[0].keys() == last.keys()
  step.run(tf_session, new[1:])
  [taken] = step.read(tf_session)
  assert len(taken) == room
  assert len(taken.keys() & set(new[1:])) == min(len(new) - 1, room // 8)


@pytest.mark.slow
def test_what_ftrl_keeps_begins_from_the_row_also_of_a_row_that_is_taken(
  tf_session,
):
  """Without penalties ftrl is adagrad: w <- w - g / sqrt(0.1 + g^2)."""
  step, keys = make_step(
    tf_session,
    optimizer='ftrl',
    unseen_steps=2,
  )
  room = new_rows.NewRows(10).rows_in_bucket - new_rows.NUM_RESERVED
  old, [new] = keys[:room], keys[room : room + 1]

  def check(asked):
    first = step.run(tf_session, asked)
    [found] = step.read(tf_session)
    assert abs(first).min() > 0
    rows = [found[key][0] for key in asked]
    np.testing.assert_allclose(rows, first + 1 / np.sqrt(1.1), rtol=1e-5)
    return found

  check(old)
  for _ in range(3):
    step.run(tf_session, old[1:])
  assert check([new]).keys() == {new, *old[1:]}


@pytest.mark.slow
def test_no_key_takes_a_row_that_was_free_a_moment_before(tf_session):
  step, keys = make_step(tf_session, unseen_steps=2)
  room = new_rows.NewRows(10).rows_in_bucket - new_rows.NUM_RESERVED
  step.run(tf_session, keys[: room - 3])
  for _ in range(3):
    step.run(tf_session, [])
  new = keys[room : room + 4]  # Three free rows, and an old one.
  step.run(tf_session, new)
  [found] = step.read(tf_session)
  assert len(found) == room and found.keys() >= set(new)
  [counts] = tf_session.run([part.counts for part in step.parts])
  assert counts[7].tolist() == [room + new_rows.NUM_RESERVED, 0, 1]


@pytest.mark.daily
@pytest.mark.slow
def test_no_save_has_a_key_with_the_row_of_another(make_cluster, tmp_path):
  cluster, num_steps = make_cluster(2, 3), 300
  barrier, are_over = threading.Barrier(3, timeout=60), threading.Event()

  def work(index):
    # Keys come a few times, and then no more.
    rng = np.random.default_rng(index)
    step = Step(cluster.worker(index), 600, min_sightings=2, unseen_steps=60)
    saver = table_saver.TableSaver('/cpu:0')
    with tf.Session(cluster.servers[index].target) as session:
      if not index:
        step.begin(session)
      barrier.wait()
      if index == 2:
        while not are_over.is_set():
          saver.save(session, str(tmp_path / 'model'))
          check_save(str(tmp_path / 'model'))
      else:
        for i in range(num_steps):
          step.run(session, 10 * i + rng.integers(0, 400, 100))
        are_over.set()
      barrier.wait()
      counts = session.run([part.counts for part in step.parts])
      return step.read(session), np.concatenate(counts)

  found, counts = cluster.run_workers(work)[0]
  # How many keys leave depends on how the two workers' steps fall together.
  assert counts[:, 2].sum() > 500
  together = {k: v[0] for part in found for k, v in part.items()}
  find_added(np.array([*together]), np.array([*together.values()]))


def check_save(path):
  """Checks that each key has what it began with, and whole numbers more."""
  reader = tf.train.load_checkpoint(path)
  keys, rows = (reader.get_tensor(f'user/{x}') for x in ('keys', 'rows'))
  at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
  assert len(set(keys[at])) == len(at)
  find_added(keys[at], rows[at])
