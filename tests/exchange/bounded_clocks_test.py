"""bounded_clocks: permits; workers that die are in ssp_test.py."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange import bounded_clocks
from tests.support import in_process

CLUSTER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 0)


class Run:
  """The clocks of two workers, as the first has them, in one process."""

  def __init__(self, session, bound):
    self._session = session
    self.clocks = bounded_clocks.Clocks(CLUSTER, bound, '')
    self._tick = self.clocks.tick_and_wait([])

  def run(self, op, timeout_in_ms=30_000):
    options = tf.RunOptions(timeout_in_ms=timeout_in_ms)
    return self._session.run(op, options=options)

  def tick(self, timeout_in_ms=30_000):
    self.run(self._tick, timeout_in_ms)

  def read(self):
    """Returns (clocks, permits), lists of int."""
    clocks, permits = self.run(self.clocks.state)
    return clocks.tolist(), permits.tolist()


@pytest.mark.slow
@pytest.mark.parametrize('bound', [0, 3])
def test_a_worker_is_given_as_many_permits_as_it_may_be_ahead(
  tf_session, bound
):
  run = Run(tf_session, bound)
  run.run(run.clocks.enter)
  assert run.read() == ([0, 0], [bound, 0])
  for _ in range(bound):
    run.tick()
  assert run.read() == ([bound, 0], [0, 0])
  with pytest.raises(tf.errors.DeadlineExceededError):
    run.tick(timeout_in_ms=200)
  # It died in that wait: the step is counted, and it may not be as far.
  run.run(run.clocks.enter)
  assert run.read() == ([bound, 0], [0, 0])


@pytest.mark.slow
def test_one_that_leaves_holds_up_nobody(tf_session):
  run = Run(tf_session, 1)
  run.run(run.clocks.enter)
  run.run(run.clocks.leave)
  [own, other], _ = run.read()
  assert (own > 10**9, other) == (True, 0)
  # It may come back, beside the slowest.
  run.run(run.clocks.enter)
  assert run.read() == ([0, 0], [1, 0])


@pytest.mark.slow
def test_permits_are_offered_until_the_worker_has_left(tf_session, monkeypatch):
  run, asked = Run(tf_session, 0), []
  stop = types.SimpleNamespace(on_request=asked.append)
  hook = bounded_clocks.ClocksHook(run.clocks, stop)
  hook.begin()
  [offer] = asked
  offer()  # Before its session there is nothing to wait for.
  assert hook.describe_wait() == ''
  hook.after_create_session(tf_session, None)
  assert run.read() == ([0, 0], [0, 0])
  monkeypatch.setattr(
    bounded_clocks.round_waits, 'read', lambda *_: ([7, 2], [0, 3])
  )
  assert hook.describe_wait().startswith('the clocks: worker 0 at step 7 with')
  offering = in_process.start_thread(offer)
  run.tick()
  hook.end(tf_session)
  offering.join(in_process.DEADLINE_SECS)
  assert not offering.is_alive() and not offering.errors
  assert run.read()[0][0] > 10**9


def test_a_wait_for_a_permit_says_where_the_clocks_are():
  line = bounded_clocks.format_state([7, 2, 2**62], [0, 3, 1])
  assert line == (
    'the clocks: worker 0 at step 7 with 0 permits, worker 1 at step 2 with 3 '
    'permits, worker 2 has left with 1 permits'
  )
