"""unit_queues: tokens of units, put where they are due."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.shards import unit_queues

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]


@pytest.fixture
def run(make_cluster):
  """Returns run(build), which runs what `build(UnitQueues)` has built."""
  target = make_cluster(2, 2).servers[0].target

  def build_and_run(build):
    with tf.Graph().as_default(), tf.Session(target) as session:
      units = unit_queues.UnitQueues(2, [PS[0], PS[1], PS[0]])
      return session.run(build(units))

  return build_and_run


def count(units):
  return [[queue.size() for queue in queues] for queues in units._queues]


def test_what_is_due_is_put_and_an_own_queue_emptied(run):
  run(lambda units: units.put_one(1))
  run(lambda units: units.put_where(PS[0], [1], tf.constant([False, True])))
  assert run(count) == [[0, 0], [1, 1], [0, 1]]
  run(lambda units: units.take(1, worker=0))
  run(lambda units: units.empty(PS[0], worker=1))
  assert run(count) == [[0, 0], [0, 1], [0, 0]]
  run(lambda units: units.offer(0, 3))
  assert run(count) == [[3, 0], [3, 1], [3, 0]]


def test_what_is_closed_gets_nothing_and_may_be_closed_again(run):
  run(lambda units: units.close())
  run(lambda units: units.close())
  run(lambda units: units.put_where(PS[0], [0], tf.constant([True, True])))
  with pytest.raises(tf.errors.OutOfRangeError):
    run(lambda units: units.take(0, worker=0))


def test_notes_are_of_a_ps_and_minus_1_where_there_are_none(run):
  assert run(lambda units: units.find(PS[1], [0, 5])).tolist() == [-1, -1]

  def note(units):
    def build():
      return units.note(PS[1], [5], tf.constant([7], tf.int64))

    return units.run_locked(PS[1], build, [])

  run(note)
  assert run(lambda units: units.find(PS[1], [0, 5])).tolist() == [-1, 7]
  assert run(lambda units: units.find_place(1) and units.find(PS[0], [5])) == -1
