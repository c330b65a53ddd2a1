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
ps. What does not depend on the batch runs, but may only read: a change that
does not, such as a counter's or the update by a gradient of a penalty on
weights alone, is made to wait for the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.exchange.copies import local_copies


def keep_loops_whole(graph: tf.Graph) -> None:
  """Makes each loop of a graph run as one op.

  TensorFlow splits a While into Enter, Merge and Switch when it prepares a
  graph, and in a distributed session a split loop does not end if its input is
  dead. As one op it is dead as a whole.

  Args:
    graph: which no session has run yet.
  """
  for op in graph.get_operations():
    if op.type in ('While', 'StatelessWhile'):
      tf_internals.keep_loop_whole(op)


class Warmup:
  """The switch by which the steps of one worker's graph have no effect."""

  def __init__(self, device: str) -> None:
    """
    Args:
      device: the worker's CPU.
    """
    self._device = device
    with tf.device(device):
      self._is_on = tf.get_local_variable(
        'is_warmup', initializer=False, use_resource=True
      )
    self._is_stale = False

  def hold_back(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, dead during a warm-up."""
    with tf.device(self._device):
      switch = tf.raw_ops.Switch(data=tensor, pred=self._is_on.read_value())
      # An op of its own: a Switch itself runs, whichever output is dead.
      self._batch = tf.identity(switch.output_false)
      return self._batch

  def or_zeros(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, or zeros during a warm-up, where it is dead.

    Not to be called under control dependencies on what is held back: anything
    that depends on that is dead as well.
    """
    with tf.device(self._device):
      zeros = tf.raw_ops.Switch(
        data=tf.zeros(tensor.shape, tensor.dtype), pred=self._is_on.read_value()
      ).output_true
      return tf.raw_ops.Merge(inputs=[tensor, zeros]).output

  def hold_back_changes(self, ops: Sequence[tf.Operation | tf.Tensor]) -> None:
    """Makes `ops` and the UPDATE_OPS change nothing during a warm-up.

    To be called once the step is built, after `hold_back`.

    Args:
      ops: the end of the step.
    """
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    for op in find_changes([*ops, *updates], self._batch.op):
      tf_internals.add_control_inputs(op, [self._batch.op])

  def turn(self, is_on: bool) -> tf.Operation:
    """Returns the op that starts or ends a warm-up."""
    return self._is_on.assign(is_on, read_value=False)

  def build(self) -> None:
    """Builds what a warm-up runs, once the graph of the rule is complete."""
    self._start, self._end = self.turn(True), self.turn(False)
    copies = local_copies.get_all()
    self._anew = tf.variables_initializer(copies)
    self._pull = tf.group(*graph_record.current().pulls)

  def run(
    self, session: tf.Session, runs: Iterable[tuple[Any, dict[tf.Tensor, Any]]]
  ) -> None:
    """Warms up the graphs of a new session.

    Args:
      runs: (fetches, feed_dict), each kind of run.
    """
    session.run(self._start)
    for fetches, feed in runs:
      session.run(fetches, feed)
    session.run(self._end)
    self._is_stale = True

  def pull_anew(self, session: tf.Session) -> None:
    """Pulls before the first step: until then the copies grow stale."""
    if self._is_stale:
      session.run(self._anew)
      session.run(self._pull)
      self._is_stale = False


def find_changes(
  ops: Iterable[tf.Operation | tf.Tensor], gate: tf.Operation
) -> list[tf.Operation]:
  """Returns what may change a variable on the way to `ops`.

  Args:
    gate: what depends on it, or it on that, is left out.
  """
  sources = _find_sources([gate])
  found = _find_sources([getattr(op, 'op', op) for op in ops])
  users = {}
  for op in found:
    for source in _list_inputs(op):
      users.setdefault(source, []).append(op)
  dependent, todo = set(), [gate]
  while todo:
    op = todo.pop()
    if op not in dependent:
      dependent.add(op)
      todo += users.get(op, [])
  return [
    op
    for op in found
    if op.op_def.is_stateful
    and op.inputs
    and op.type != 'ReadVariableOp'
    and op not in dependent
    and op not in sources
  ]


def _find_sources(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
  """Returns the set of `ops` and all that they depend on."""
  found, todo = set(), list(ops)
  while todo:
    op = todo.pop()
    if op not in found:
      found.add(op)
      todo += _list_inputs(op)
  return found


def _list_inputs(op: tf.Operation) -> list[tf.Operation]:
  return [*(tensor.op for tensor in op.inputs), *op.control_inputs]
