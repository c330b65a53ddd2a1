"""unit_progress: what is due, what is ahead, and a new beginning."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.exchange.shards import unit_progress, unit_queues

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
LIFE = round_entry.LIFE


@pytest.fixture
def run(make_cluster):
  """Returns run(build), which runs what `build(UnitProgress)` has built.

  Of units 0 and 2 on ps 0 and of 1 on ps 1, which begin at step 4.
  """
  target = make_cluster(2, 2).servers[0].target

  def build_and_run(build):
    with tf.Graph().as_default(), tf.Session(target) as session:
      units = unit_queues.UnitQueues(2, [PS[0], PS[1], PS[0]])
      return session.run(build(unit_progress.UnitProgress(units)))

  build_and_run(
    lambda progress: [progress.reset(place, step(LIFE + 4)) for place in PS]
  )
  return build_and_run


def step(number):
  return tf.constant(number, tf.int64)


def test_a_unit_is_due_until_it_is_applied(run):
  assert run(lambda progress: progress.begin(2, step(5)))
  assert run(lambda progress: progress.begin(2, step(5)))
  run(lambda progress: progress.end(2, tf.stack([step(5), step(LIFE + 5)])))
  assert not run(lambda progress: progress.begin(2, step(5)))
  assert run(lambda progress: progress.begin(0, step(5)))
  assert run(lambda progress: progress.begin(2, step(6)))


def test_tokens_are_noted_a_unit_or_a_ps(run):
  run(lambda progress: progress.end(2, tf.stack([step(5), step(LIFE + 5)])))
  found = run(lambda progress: progress.find_handed(PS[0]))
  assert found.tolist() == [LIFE + 4, LIFE + 5]
  run(lambda progress: progress.note_handed(PS[0], step(LIFE + 7)))
  found = run(lambda progress: [progress.find_handed(place) for place in PS])
  assert [x.tolist() for x in found] == [[LIFE + 7] * 2, [LIFE + 4]]
