"""places: the first R workers that ask, each of them once a round."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry

PS = '/job:ps/task:0/device:CPU:0'
LIFE = round_entry.LIFE


class Desk:
  """Three workers, of which two have a place."""

  def __init__(self, cluster):
    self._cluster = cluster
    self.run(0, lambda entry: entry.begin_life(lambda token: tf.no_op()))

  def run(self, worker, build, step=0):
    """Runs what `build(Entry)` has built, at that global_step."""
    with tf.Graph().as_default():
      with tf.device(PS):
        global_step = tf.train.get_or_create_global_step()
      entry = round_entry.Entry(
        self._cluster.worker(worker), 2, global_step, has_places=True
      )
      fetch = build(entry)
      with tf.Session(self._cluster.servers[0].target) as session:
        session.run(global_step.assign(step))
        return session.run(fetch)

  def ask(self, worker, token, step=0):
    """Returns (staleness, token of its parts)."""

    def build(entry):
      with tf.device(PS):
        own = tf.constant(token, tf.int64)
      staleness, (given,) = entry.contribute(own, lambda token: [token])
      return staleness, given

    return self.run(worker, build, step)


@pytest.fixture
def desk(make_cluster):
  return Desk(make_cluster(1, 3))


@pytest.mark.slow
def test_the_first_two_have_a_place_however_often_they_ask(desk):
  assert desk.ask(2, LIFE) == desk.ask(2, LIFE) == (0, LIFE)
  assert desk.ask(0, LIFE) == (0, LIFE)
  # The round is full, and the place still that worker's until it is over.
  assert desk.ask(2, LIFE) == (0, LIFE)
  assert desk.ask(1, LIFE) == (1, round_entry.NEVER_IN)
  assert desk.ask(2, LIFE, step=1)[0] == 1
  # In the next round worker 1 may be among the first.
  assert desk.ask(1, LIFE + 1, step=1) == (0, LIFE + 1)


@pytest.mark.slow
def test_one_that_is_late_is_told_how_many_rounds_it_missed(desk):
  assert desk.ask(1, LIFE + 3, step=7) == (4, round_entry.NEVER_IN)


@pytest.mark.slow
def test_places_of_an_earlier_life_are_none(desk):
  assert desk.ask(2, LIFE) == (0, LIFE)
  assert desk.ask(0, LIFE) == (0, LIFE)
  desk.run(0, lambda entry: entry.begin_life(lambda token: tf.no_op()))
  assert desk.ask(2, LIFE) == (1, round_entry.NEVER_IN)
  assert desk.ask(1, 2 * LIFE) == desk.ask(2, 2 * LIFE) == (0, 2 * LIFE)
  assert desk.ask(0, 2 * LIFE)[0] == 1


@pytest.mark.slow
def test_with_as_many_as_workers_nobody_asks(make_cluster):
  cluster = make_cluster(1, 3)
  with tf.Graph().as_default(), tf.device(PS):
    global_step = tf.train.get_or_create_global_step()
    entry = round_entry.Entry(
      cluster.worker(0), 3, global_step, has_places=True
    )
    own = tf.constant(LIFE, tf.int64)
    assert entry.contribute(own, lambda token: [token]) == (None, [own])
