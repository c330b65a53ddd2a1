"""given_parts: a part counts once for each worker, unit and token."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.exchange.shards import given_parts, unit_queues

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]


@pytest.fixture
def run(make_cluster):
  """Returns run(build, worker), which runs what build(GivenParts) has built."""
  target = make_cluster(2, 2).servers[0].target

  def build_and_run(build, worker=0):
    with tf.Graph().as_default(), tf.Session(target) as session:
      units = unit_queues.UnitQueues(2, PS)
      return session.run(build(given_parts.GivenParts(units, worker, 2)))

  return build_and_run


def give(unit, token):
  """Returns a builder of the token with which a part is contributed."""

  def build(parts):
    given = []

    def contribute(once):
      given.append(once)
      return [once]

    own = tf.constant(token, tf.int64)
    op = parts.give_once(unit, own, contribute, [tf.constant(1.0)])
    with tf.control_dependencies([op]):
      return tf.identity(given[0])

  return build


def test_the_same_token_comes_in_once_a_unit_and_worker_until_forgotten(run):
  assert run(give(0, 7)) == 7
  assert run(give(0, 7)) == round_entry.NEVER_IN
  assert run(give(1, 7)) == 7
  assert run(give(0, 7), worker=1) == 7
  assert run(give(0, 8)) == 8
  run(lambda parts: parts.forget(PS[0]))
  assert run(give(0, 8)) == 8
  assert run(give(1, 7)) == round_entry.NEVER_IN
