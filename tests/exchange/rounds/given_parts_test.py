"""GivenParts: a part counts once for each worker and token."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions, round_entry

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]


@pytest.fixture
def run(make_cluster):
  """Returns run(build, worker), which runs what build(GivenParts) has built."""
  cluster = make_cluster(2, 2)

  def build_and_run(build, worker=0):
    target = cluster.servers[0].target
    with tf.Graph().as_default(), tf.Session(target) as session:
      parts = contributions.GivenParts(cluster.worker(worker), [*PS, PS[0]])
      return session.run(build(parts))

  return build_and_run


def give(part, token):
  """Returns a builder of the token with which a part is contributed."""

  def build(parts):
    given = []

    def contribute(once):
      given.append(once)
      return [once]

    own = tf.constant(token, tf.int64)
    last = parts.read(part, [tf.constant(1.0)])
    op = parts.give_once(part, last, own, contribute)
    assert op.device == PS[part % 2]
    with tf.control_dependencies([op]):
      return tf.identity(given[0])

  return build


@pytest.mark.slow
def test_the_same_token_comes_in_once_a_part_and_worker(run):
  assert run(give(0, 7)) == 7
  assert run(give(0, 7)) == round_entry.NEVER_IN
  assert run(give(1, 7)) == 7
  assert run(give(0, 7), worker=1) == 7
  assert run(give(0, 8)) == 8


@pytest.mark.slow
def test_what_is_forgotten_at_a_ps_may_come_again_there(run):
  for part in range(3):
    run(give(part, 7))
  run(lambda parts: parts.forget(PS[0]))
  assert run(give(0, 7)) == run(give(2, 7)) == 7
  assert run(give(1, 7)) == round_entry.NEVER_IN
