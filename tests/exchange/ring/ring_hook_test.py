import signal
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.exchange.ring import ring_hook
from tests.support import in_process

CLUSTER = cluster_lib.make_cluster((), ('v:1', 'w:1'), 'worker', 1)


class Session:
  """Stands for a tf.Session whose runs fail with `error`, if there is one."""

  def __init__(self, error=None):
    self.error = error
    self.ran = []

  def run(self, fetch):
    self.ran.append(fetch)
    if self.error:
      raise self.error


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
    tf.get_variable('w', [3])
    tf.get_variable('n', [], tf.int64, tf.zeros_initializer())

    def build_leave(timeout_secs):
      return tf.no_op(f'leave_within_{timeout_secs:.0f}')

    votes = types.SimpleNamespace(mean=tf.zeros([3]), build_leave=build_leave)
    hook = ring_hook.RingHook(CLUSTER, votes, stop)
    hook.begin()
    yield hook


def test_the_variables_of_each_dtype_come_from_the_chief(hook):
  session = Session()
  hook.after_create_session(session, None)
  [broadcasts] = session.ran
  assert len(broadcasts) == 2
  keys = sorted(
    op.get_attr('T').name
    for op in tf.get_default_graph().get_operations()
    if op.type == 'CollectiveBcastRecvV2'
  )
  assert keys == ['float32', 'int64']


@pytest.mark.parametrize(
  ('error', 'message', 'is_passing'),
  [
    (tf.errors.DeadlineExceededError, 'not all workers .* 60 s', True),
    (tf.errors.InvalidArgumentError, 'have the same variables', False),
  ],
)
def test_a_start_that_fails_says_why(hook, error, message, is_passing):
  with pytest.raises(cli.RunError, match=message) as caught:
    hook.after_create_session(Session(error(None, None, 'no')), None)
  assert isinstance(caught.value, cli.PassingError) == is_passing


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
  hook.after_run(context, types.SimpleNamespace(results=np.array(votes)))
  assert (context.has_stopped, stop.signals) == (has_stopped, signals)


def step(hook, *votes):
  hook.before_run(Context())
  hook.after_run(Context(), types.SimpleNamespace(results=np.array(votes)))


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
  assert leave.endswith('leave_within_0')
  assert end == hook._end_op.op.name


def test_one_whose_step_has_failed_does_not_wait_for_ever(hook):
  step(hook, 0.0, 0.0, 0.0)
  hook.before_run(Context())
  leave, _ = ends_with(hook)
  assert leave.endswith('leave_within_5')


@pytest.mark.parametrize('votes', [(0.5, 0.0, 0.0), (0.0, 0.5, 0.0)])
def test_after_a_common_last_step_there_is_no_other(hook, votes):
  step(hook, *votes)
  assert ends_with(hook) == [hook._end_op.op.name]


def test_the_end_waits_for_the_others_or_finds_them_gone(hook):
  step(hook, 0.5, 0.0, 0.0)
  session = Session(tf.errors.InternalError(None, None, 'gone'))
  hook.end(session)
  [ran] = session.ran
  assert ran.op.type == 'CollectiveReduceV2'
