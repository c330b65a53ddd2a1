"""votes: what a worker says of itself, and what all hear."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import votes
from distmnist.exchange.steps import run_length

ASKED = types.SimpleNamespace(is_requested=True)


@pytest.mark.parametrize(
  ('wants_stop', 'stop', 'expected'),
  [
    (False, None, [0, 0, 0, 1, 0, 0]),
    (True, None, [1, 0, 0, 1, 0, 0]),
    (False, ASKED, [0, 1, 0, 1, 0, 0]),
    (True, ASKED, [1, 1, 0, 1, 0, 0]),
  ],
)
def test_a_worker_votes_as_it_was_asked(wants_stop, stop, expected):
  own = votes.Votes(None, 0)
  own.wants_stop, own.stop = wants_stop, stop
  assert own._vote().tolist() == expected


def test_workers_agree_on_how_long_a_step_takes_and_whether_a_run_is_long():
  workers = [votes.Votes(None, 0) for _ in range(2)]
  workers[0].vote(0.002, True)
  workers[1].vote(0.004, False)
  mean = sum(worker._vote() for worker in workers) / 2
  for worker in workers:
    assert worker.note(mean) == [False, False, False]
    assert worker.secs == pytest.approx(0.003) and not worker.is_long
  workers[1].vote(0.004, True)
  workers[0].note(sum(worker._vote() for worker in workers) / 2)
  assert workers[0].is_long
  workers[0].forget()
  assert (workers[0].secs, workers[0].is_long) == (0, False)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32'])
@pytest.mark.parametrize('secs', [0.0004, run_length.LONG_SECS])
def test_how_long_a_step_takes_can_travel_in_each_dtype(dtype, secs):
  own = votes.Votes(None, 0)
  own.vote(secs, True)
  sent = tf.as_dtype(dtype).as_numpy_dtype(own._vote())
  own.note(sent.astype('float32'))
  assert own.secs == pytest.approx(min(secs, 60), rel=0.01)


@pytest.mark.slow
def test_all_hear_of_one_that_has_left(make_cluster):
  cluster = make_cluster(0, 2)
  cluster.reset()

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.device_setter()):
      variables = [tf.get_variable('w', [2])]
    own = votes.Votes(member, 0)
    own.wants_stop = True
    gradient = tf.constant([2.0, 4.0])
    [mean] = own.build_means([gradient], variables, tf.constant(True))
    leave = own.build_leave(has_failed=False)
    config = cluster.session_config(index)
    with tf.Session(cluster.servers[index].target, config=config) as session:
      if index:
        return session.run(leave)
      found = session.run([mean, own.mean, own.is_any_cut])
      return [x.tolist() for x in found]

  heard = [1, 0, 0.5, 0.5, 0, 0.5]  # One cuts the rate as the other leaves.
  assert cluster.run_workers(work) == [[[1, 2], heard, True], None]
