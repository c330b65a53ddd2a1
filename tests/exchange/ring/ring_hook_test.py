import signal
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.exchange.ring import meeting, ring_hook
from distmnist.exchange.ring import votes as votes_lib
from tests.support import in_process

CLUSTER = cluster_lib.make_cluster((), ('v:1', 'w:1'), 'worker', 1)


class Session:
  """Stands for a tf.Session whose runs fail with `error`, if there is one."""

  def __init__(self, error=None):
    self.error = error
    self.ran = []
    self.limits_ms = []

  def run(self, fetch, options=None):
    self.ran.append(fetch)
    self.limits_ms.append(options.timeout_in_ms if options else 0)
    if self.error:
      raise self.error
    return None


class Context:
  has_stopped = False

  def request_stop(self):
    self.has_stopped = True


@pytest.fixture
def stop():
  stop = in_process.NoStop()
  stop.signals = []
  stop.request = stop.signals.append
  return stop


@pytest.fixture
def hook(stop):
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    tf.get_variable('w', [3])
    tf.get_variable('n', [], tf.int64, tf.zeros_initializer())

    def build_leave(has_failed):
      return tf.no_op('leave_failed' if has_failed else 'leave')

    votes = votes_lib.Votes(CLUSTER, 0)
    votes.mean, votes.build_leave = tf.zeros([6]), build_leave
    hook = ring_hook.RingHook(CLUSTER, votes, stop)
    hook.begin()
    yield hook


def agree(hook, *steps):
  """Has the hook, of worker 1, agree with the others on their steps."""
  entries = [[f'life {i}', 1, step, 5] for i, step in enumerate(steps)]
  hook._agreed = meeting.agree('name', entries)


def test_the_values_come_from_the_giver_within_a_limit(hook):
  agree(hook, None, None)
  session = Session()
  hook.after_create_session(session, None)
  assert session.ran == [hook._handover.take]
  assert session.limits_ms == [60_000]
  assert hook.has_values


def test_who_has_most_steps_gives_them_and_waits_for_nobody(hook):
  agree(hook, None, 3)
  session = Session()
  hook.after_create_session(session, None)
  assert session.ran == [[hook._handover.gifts[0]]]


def test_who_has_as_many_keeps_its_own(hook):
  agree(hook, 3, 3)
  session = Session()
  hook.after_create_session(session, None)
  assert session.ran == []


def test_values_that_do_not_come_are_no_values(hook):
  agree(hook, None, None)
  error = tf.errors.DeadlineExceededError(None, None, 'no')
  with pytest.raises(cli.LostError, match=r'from worker 0 within 60 s'):
    hook.after_create_session(Session(error), None)
  assert not hook.has_values


@pytest.mark.parametrize(
  ('votes', 'has_stopped', 'signals'),
  [
    ([0.0, 0.0, 0.0], False, []),
    ([0.5, 0.0, 0.0], True, []),
    ([0.5, 0.0, 0.5], True, []),
    # One of two got a signal: to all it is as if they had.
    ([0.0, 0.5, 0.0], True, [signal.SIGTERM]),
  ],
)
def test_all_stop_after_the_step_in_which_one_votes_for_it(
  hook, stop, votes, has_stopped, signals
):
  context = Context()
  hear(hook, context, votes)
  assert (context.has_stopped, stop.signals) == (has_stopped, signals)


def hear(hook, context, votes):
  """Has a step end with these `votes`, and steps of 2 ms in short runs."""
  results = np.array([*votes, 1.0, 2.0, 0.0])
  hook.after_run(context, types.SimpleNamespace(results=results))


def step(hook, *votes):
  hook.before_run(Context())
  hear(hook, Context(), votes)


def test_one_that_has_left_is_told(hook, caplog):
  caplog.set_level('INFO')
  step(hook, 0.5, 0.0, 0.0)
  assert not caplog.messages
  step(hook, 0.5, 0.0, 0.5)
  assert 'another worker has left its loop' in caplog.text


def ends_with(hook):
  """Returns the names of what a session runs at its end."""
  session = Session()
  hook.end(session)
  return [getattr(fetch, 'op', fetch).name for fetch in session.ran]


def test_one_that_leaves_its_loop_votes_in_one_more_step(hook):
  step(hook, 0.0, 0.0, 0.0)
  leave, end = ends_with(hook)
  assert leave.endswith('/leave')
  assert end == hook._end_op.name


def test_one_that_leaves_waits_until_another_is_lost(hook, monkeypatch):
  losses, is_over = ['', 'worker 0 is lost'], threading.Event()
  monkeypatch.setattr(ring_hook, '_LOOK_SECS', 0.0)
  monkeypatch.setattr(hook, 'find_loss', lambda: losses.pop(0))

  class Hanging(Session):
    def run(self, fetch, options=None):
      super().run(fetch, options)
      assert is_over.wait(in_process.DEADLINE_SECS)

  step(hook, 0.0, 0.0, 0.0)
  session = Hanging()
  hook.end(session)
  is_over.set()
  assert losses == []
  [leave] = session.ran  # Nobody is left to wait for at the end.
  assert leave.name.endswith('/leave')


def test_one_whose_step_has_failed_does_not_wait_for_ever(hook):
  step(hook, 0.0, 0.0, 0.0)
  hook.before_run(Context())
  leave, _ = ends_with(hook)
  assert leave.endswith('/leave_failed')


@pytest.mark.parametrize('votes', [(0.5, 0.0, 0.0), (0.0, 0.5, 0.0)])
def test_after_a_common_last_step_there_is_no_other(hook, votes):
  step(hook, *votes)
  assert ends_with(hook) == [hook._end_op.name]


def test_the_end_waits_for_the_others_or_finds_them_gone(hook):
  step(hook, 0.5, 0.0, 0.0)
  session = Session(tf.errors.InternalError(None, None, 'gone'))
  hook.end(session)
  [ran] = session.ran
  assert ran is hook._end_op
  assert session.limits_ms == [5000]
