"""The start and the end of a training without a ps."""

import contextlib
import logging
import signal

import tensorflow.compat.v1 as tf

from distmnist.cluster import stop_request
from distmnist.common import cli
from distmnist.exchange.ring import all_reduce

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
    cluster, variables = self._cluster, tf.global_variables()
    # The trailing slash re-enters the name scope of the step.
    with tf.name_scope('ring_allreduce/'), tf.device(cluster.cpu_device):
      own = tf.constant(all_reduce.fingerprint(variables), tf.int64)
      self._fingerprints, self._end_op = (
        tf.stack(all_reduce.build_all(cluster, own, name))
        for name in ('ring/start', 'ring/end')
      )
      self._broadcast_op = all_reduce.build_broadcast(
        cluster, variables, 'ring/variables'
      )
      self._leave_op = self._votes.build_leave(has_failed=False)
      self._leave_failed_op = self._votes.build_leave(has_failed=True)

  def after_create_session(self, session, coord):
    # Nobody can be ready in no time.
    options = _limit(max(1.0, self._cluster.start_timeout_secs))
    try:
      fingerprints = session.run(self._fingerprints, options=options)
      if len(set(fingerprints)) > 1:
        raise cli.RunError(
          'the workers do not have the same variables: check that all tasks '
          'have the same flags'
        )
      session.run(self._broadcast_op, options=options)
    except tf.errors.DeadlineExceededError as error:
      raise cli.PassingError(
        'not all workers were ready for the first step within '
        f'{self._cluster.start_timeout_secs:g} s: see their logs'
      ) from error

  def before_run(self, run_context):
    self._is_amid_step = True
    return tf.train.SessionRunArgs(self._votes.mean)

  def after_run(self, run_context, run_values):
    self._is_amid_step = False
    wants_stop, is_preempted, has_left = self._votes.note(run_values.results)
    if is_preempted:
      self._stop.request(signal.SIGTERM)
    if has_left:
      _log.info(stop_request.LEFT)
    if wants_stop or is_preempted:
      self._has_agreed = True
      run_context.request_stop()

  def end(self, session):
    """No worker leaves while another may still take from it."""
    options = _limit(_END_TIMEOUT_SECS)
    with contextlib.suppress(tf.errors.OpError):
      if self._is_amid_step:
        # An input has ended in it: the others wait for this worker's part.
        session.run(self._leave_failed_op, options=options)
      elif not self._has_agreed:
        session.run(self._leave_op)
      session.run(self._end_op, options=options)


def _limit(secs):
  """Returns tf.RunOptions by which a session.run fails after `secs`."""
  return tf.RunOptions(timeout_in_ms=round(1000 * secs))
