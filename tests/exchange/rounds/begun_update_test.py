"""A chief that is asked to stop amid an update finishes it."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions
from tests.support import rounds

make = rounds.make


@pytest.fixture(params=[2, 3], ids=['all', 'two_of_three'])
def amid_an_update(make, request):
  """A Run in whose update of two workers one shard is ahead of the other."""
  run = make(request.param, 2, num_ps=2, size=2, stops_at='half')
  run.push(0, 8, 8)
  chief = run.stepper.workers[0].rule
  assert not run.stepper.is_done(0)
  assert chief.hook.is_whole(chief.raw_session)
  run.push(1, 4, 4)
  run.wait_for_stop()
  while run.stepper.read_center() != [3, 0]:
    pass
  assert not chief.hook.is_whole(chief.raw_session)
  return run


def ask_chief(run, secs_left):
  """Asks the chief to stop; returns its rule."""
  chief = run.stepper.workers[0].rule
  chief.stop.secs_left = secs_left
  chief.stop.request()
  return chief


@pytest.mark.daily(but=['two_of_three'])
@pytest.mark.slow
def test_it_leaves_once_all_shards_have_the_update(amid_an_update):
  run = amid_an_update
  chief = ask_chief(run, 120)
  assert not run.stepper.is_done(0)
  with tf.Graph().as_default(), tf.Session(chief.raw_session.sess_str) as other:
    _, go = rounds.build_stop()
    other.run(go.enqueue(True))
  assert run.stepper.join(0) == run.stepper.join(1) == (1, 0, [3, 3])
  assert chief.hook.is_whole(chief.raw_session)


@pytest.mark.daily(but=['all'])
@pytest.mark.slow
def test_one_that_cannot_be_finished_is_not_to_be_saved(amid_an_update):
  run = amid_an_update
  chief = ask_chief(run, 0.2)
  step, _, center = run.stepper.join(0)
  assert (step, center) == (0, [3, 0])
  assert not chief.hook.is_whole(chief.raw_session)
  run.leave(0)


@pytest.mark.slow
@pytest.mark.parametrize('taken', [0, 1])
def test_of_shards_that_arrive_together_each_may_be_ahead(make_cluster, taken):
  cluster = make_cluster(1, 1)
  with tf.Graph().as_default():
    the_round = rounds.build_bare(cluster.worker(0), 2, parts=[[0, 1]])
    is_whole = the_round.build_is_whole()
    push = contributions.Contribution(the_round, [tf.ones([2])] * 2).apply(
      the_round.entry.read_token()
    )
    take = the_round.accumulators[taken][0].take_grad(1)
    with tf.Session(cluster.servers[0].target) as session:
      session.run(the_round.global_step.initializer)
      assert session.run(is_whole)
      session.run(push)
      assert session.run(is_whole)
      session.run(take)
      assert not session.run(is_whole)
