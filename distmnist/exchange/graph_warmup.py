"""A rehearsal: each kind of run is run once, and nothing comes of it.

TensorFlow prepares a graph (prunes, optimises and places it, and tells each ps
of its part) in the first session.run that runs it, which takes a fifth of a
second or several; and many kinds of runs are to come (exchange/fused_steps.py).
A worker that computes with a copy of the center has pulled it before: its first
push would be hundreds of updates stale, and a rule that takes a gradient at
full size would go astray. So such a worker rehearses, and pulls when all is
prepared.

In a rehearsal the first number of a step, that of its batch, is what TensorFlow
calls dead: what a branch of a condition that is not taken has in place of a
value. No op runs that has a dead input; its outputs are dead as well, also on a
ps. What does not depend on the batch runs, but all that it may do is to read.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange import local_copies


class Rehearsal:
  """What tells a step that it is none, of one worker and graph."""

  def __init__(self, device):
    """
    Args:
      device: str, the worker's CPU.
    """
    self._device = device
    with tf.device(device):
      self._is_on = tf.get_local_variable(
        'is_rehearsal', initializer=False, use_resource=True
      )

  def hold_back(self, tensor):
    """Returns `tensor`, dead in a rehearsal."""
    with tf.device(self._device):
      return tf.raw_ops.Switch(
        data=tensor, pred=self._is_on.read_value()
      ).output_false

  def or_zeros(self, tensor):
    """Returns `tensor`, which is dead in a rehearsal; there, zeros.

    Not to be called under control dependencies of what is held back: what they
    hold is dead as well.
    """
    with tf.device(self._device):
      zeros = tf.raw_ops.Switch(
        data=tf.zeros(tensor.shape, tensor.dtype), pred=self._is_on.read_value()
      ).output_true
      return tf.raw_ops.Merge(inputs=[tensor, zeros]).output

  def turn(self, is_on):
    """Returns the op that starts a rehearsal, or ends it."""
    return self._is_on.assign(is_on, read_value=False)

  def hook(self, steps):
    """Returns the hook that rehearses the runs of a fused_steps.Steps."""
    return _RehearsalHook(self, steps)


class _RehearsalHook(tf.train.SessionRunHook):
  def __init__(self, rehearsal, steps):
    self._rehearsal = rehearsal
    self._steps = steps

  def begin(self):
    self._start = self._rehearsal.turn(True)
    self._end = self._rehearsal.turn(False)
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
    # What other hooks do at the start takes its time, too.
    if self._is_stale:
      run_context.session.run(self._anew)
      run_context.session.run(self._pull)
      self._is_stale = False
