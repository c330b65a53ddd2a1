"""The start and the end of a training without a ps."""

import contextlib
import logging
import signal

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request
from distmnist.common import cli
from distmnist.exchange.ring import collectives

# The keys of the collective ops; the broadcast takes those from BROADCAST on,
# one per dtype, and a step those from STEP on, one per bucket.
END, BROADCAST, STEP = 1, 2, 100
_END_TIMEOUT_SECS = 5.0

_log = logging.getLogger(__name__)


class RingHook(tf.train.SessionRunHook):
  """Equal variables at the start, one common last step, then a barrier."""

  def __init__(self, cluster, votes, stop):
    """
    Args:
      cluster: cluster.Cluster.
      votes: votes.Votes, whose means are built.
      stop: stop_request.StopRequest.
    """
    self._cluster = cluster
    self._votes = votes
    self._stop = stop
    self._has_agreed = self._is_amid_step = False

  def begin(self):
    cluster, variables = self._cluster, {}
    for variable in tf.global_variables():
      variables.setdefault(variable.dtype.base_dtype, []).append(variable)
    # The trailing slash re-enters the name scope of the step.
    with tf.name_scope('ring_allreduce/'), tf.device(cluster.cpu_device):
      dtypes = sorted(variables, key=lambda dtype: dtype.name)
      self._broadcast_op = [
        collectives.build_broadcast(cluster, variables[dtype], BROADCAST + i)
        for i, dtype in enumerate(dtypes)
      ]
      self._end_op = collectives.build_mean(
        cluster, tf.zeros([1]), END, _END_TIMEOUT_SECS
      )
      self._leave_op = self._votes.build_leave(timeout_secs=0.0)
      self._try_leave_op = self._votes.build_leave(
        timeout_secs=_END_TIMEOUT_SECS
      )

  def after_create_session(self, session, coord):
    try:
      session.run(self._broadcast_op)
    except tf.errors.DeadlineExceededError as error:
      raise cli.PassingError(
        'not all workers were ready for the first step within '
        f'{self._cluster.start_timeout_secs:g} s: see their logs'
      ) from error
    except tf.errors.InvalidArgumentError as error:
      raise cli.RunError(
        'the workers do not have the same variables: check that all tasks have '
        'the same flags'
      ) from error

  def before_run(self, run_context):
    self._is_amid_step = True
    return tf.train.SessionRunArgs(self._votes.mean)

  def after_run(self, run_context, run_values):
    self._is_amid_step = False
    wants_stop, is_preempted, has_left = run_values.results > 0
    if is_preempted:
      self._stop.request(signal.SIGTERM)
    if has_left:
      _log.info(stop_request.LEFT)
    if wants_stop or is_preempted:
      self._has_agreed = True
      run_context.request_stop()

  def end(self, session):
    """No worker leaves while another may still fetch from it."""
    with contextlib.suppress(tf.errors.OpError):
      if self._is_amid_step:
        # A failed step, of an input that has ended, fails on most others, too.
        session.run(self._try_leave_op)
      elif not self._has_agreed:
        session.run(self._leave_op)
      session.run(self._end_op)
