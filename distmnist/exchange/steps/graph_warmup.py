"""Graph warm-up: each kind of run is run once, without effect.

TensorFlow prepares a graph (prunes, optimises and places it, and sends each ps
its part) in the first session.run that runs it. This takes from a fifth of a
second to several seconds, and there are many kinds of runs
(exchange/steps/fused_steps.py). A worker that computes with a copy of the
center would have pulled it before that: its first push would be hundreds of
updates stale, and a rule that takes a gradient at full size would diverge. So
such a worker warms up its graphs, and pulls once all are prepared.

During a warm-up the first tensor of a step, its batch, is what TensorFlow calls
dead: what a branch of a condition that is not taken has in place of a value. An
op with a dead input does not run, and its outputs are dead as well, even on a
ps. What does not depend on the batch runs, but may only read.
"""

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2

from distmnist.exchange.copies import local_copies


def keep_loops_whole(graph):
  """Makes each loop of a graph run as one op.

  TensorFlow splits a While into Enter, Merge and Switch when it prepares a
  graph, and in a distributed session a split loop does not end if its input is
  dead. As one op it is dead as a whole.

  Args:
    graph: tf.Graph, which no session has run yet.
  """
  apart = attr_value_pb2.AttrValue(b=False)
  for op in graph.get_operations():
    if op.type in ('While', 'StatelessWhile'):
      op._set_attr('_lower_using_switch_merge', apart)


class Warmup:
  """The switch by which the steps of one worker's graph have no effect."""

  def __init__(self, device):
    """
    Args:
      device: str, the worker's CPU.
    """
    self._device = device
    with tf.device(device):
      self._is_on = tf.get_local_variable(
        'is_warmup', initializer=False, use_resource=True
      )

  def hold_back(self, tensor):
    """Returns `tensor`, dead during a warm-up."""
    with tf.device(self._device):
      return tf.raw_ops.Switch(
        data=tensor, pred=self._is_on.read_value()
      ).output_false

  def or_zeros(self, tensor):
    """Returns `tensor`, or zeros during a warm-up, where it is dead.

    Not to be called under control dependencies on what is held back: anything
    that depends on that is dead as well.
    """
    with tf.device(self._device):
      zeros = tf.raw_ops.Switch(
        data=tf.zeros(tensor.shape, tensor.dtype), pred=self._is_on.read_value()
      ).output_true
      return tf.raw_ops.Merge(inputs=[tensor, zeros]).output

  def turn(self, is_on):
    """Returns the op that starts or ends a warm-up."""
    return self._is_on.assign(is_on, read_value=False)

  def hook(self, steps):
    """Returns the hook that warms up the runs of a fused_steps.Steps."""
    return _WarmupHook(self, steps)


class _WarmupHook(tf.train.SessionRunHook):
  def __init__(self, warmup, steps):
    self._warmup = warmup
    self._steps = steps

  def begin(self):
    self._start = self._warmup.turn(True)
    self._end = self._warmup.turn(False)
    copies = tf.get_collection(local_copies.VARIABLES)
    self._anew = tf.variables_initializer(copies)
    self._pull = tf.group(*tf.get_collection(local_copies.PULLS))

  def after_create_session(self, session, coord):
    session.run(self._start)
    for fetches, feed in self._steps.find_all_runs():
      session.run(fetches, feed)
    session.run(self._end)
    self._is_stale = True

  def before_run(self, run_context):
    # Other hooks take time at the start, too, while the copies grow stale.
    if self._is_stale:
      run_context.session.run(self._anew)
      run_context.session.run(self._pull)
      self._is_stale = False
