"""Copies the graph of a step, so that one session.run has several steps.

A copy begins when the step before it has ended, on the device where that step
ends: no message goes to the worker between two steps. What holds state, such as
a variable or a queue, is shared.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.data import step_rows
from distmnist.transport import wire

if TYPE_CHECKING:
  from distmnist.data.step_rows import StepRows


# Types of ops that call functions of the graph.
_CALLS = {
  *('While', 'If', 'Case', 'PartitionedCall', 'StatefulPartitionedCall'),
  *('StatelessWhile', 'StatelessIf', 'StatelessCase'),
}


class Step(NamedTuple):
  """One step's tensors: of every step, of a run's last only, and the count."""

  tensors: dict[str, tf.Tensor]
  last_step_tensors: dict[str, tf.Tensor]
  count: tf.Tensor | None


class LeftOut(Protocol):
  """What a copy may leave out, such as a periodic_exchange.Exchange."""

  @property
  def outputs(self) -> list[tf.Tensor]:
    """What the rest of the step uses of it."""
    ...

  @property
  def without(self) -> list[tf.Tensor]:
    """The values of `outputs` where it is left out."""
    ...


def repeat(op: tf.Operation, times: int, device: str) -> tf.Operation:
  """Returns an op that runs `op` the given number of times in sequence.

  Args:
    device: where the end of each run of `op` starts the next one.
  """
  with tf.control_dependencies([op]), tf.device(device):
    first = Step({'global_step': tf.constant(0)}, {}, None)
  chain = Copier(first).build_chain([()] * times, op.name)
  return chain[-1].tensors['global_step'].op


class _Ends:
  """What the first ops of a step wait for: the end of the step before it."""

  def __init__(self, step: Step) -> None:
    """
    Args:
      step: the one before.
    """
    ops = [tensor.op for tensor in step.tensors.values()]
    self._last = step.tensors['global_step'].op
    self._on_ps = [op for op in ops if wire.is_on_ps(op)]
    self._on_worker = [op for op in ops if not wire.is_on_ps(op)]
    self._all: tf.Operation | None = None

  def find(self, op: tf.Operation) -> list[tf.Operation]:
    """Returns the list of ops that `op` of the next step must wait for."""
    # An op that reads a variable is placed with it.
    home = op if op.device or not op.inputs else op.inputs[0]
    if not wire.is_on_ps(home):
      return self._on_worker or self._on_ps
    if wire.is_on_ps(self._last):
      return [self._last]
    return [self._gather()]

  def _gather(self) -> tf.Operation:
    """Returns one op on the worker, else each end would send a ps a message."""
    if self._all is None:
      ops = self._on_worker + self._on_ps
      with tf.device(ops[0].device), tf.control_dependencies(ops):
        self._all = tf.no_op('end')
    return self._all


class Copier:
  """Makes copies of a step that run one after the other."""

  def __init__(self, first: Step, batches: Sequence[StepRows] = ()) -> None:
    """
    Args:
      batches: step i of a run gets row i of each.
    """
    self._first = first
    self._batches = batches
    self._parts = {}
    self._latest = {}

  def build_chain(
    self, left_out: Iterable[Sequence[LeftOut]], name: str
  ) -> list[Step]:
    """Builds steps that run one after the other.

    Args:
      left_out: one list per step.
      name: the prefix of their ops.

    Returns:
      List of Step; the first one is the given step itself if it leaves
      nothing out.
    """
    chain, self._latest = [], {}
    for number, exchanges in enumerate(left_out):
      if chain or exchanges:
        before = chain[-1] if chain else None
        chain.append(
          self._copy(before, exchanges, f'{name}_{number + 1}', number)
        )
      else:
        chain.append(self._first)
    return chain

  def _copy(
    self,
    before: Step | None,
    left_out: Sequence[LeftOut],
    name: str,
    number: int,
  ) -> Step:
    """Copies the ops of the step, to run after another step.

    What holds state (a variable, a queue, an iterator) is not copied. A random
    op has state as well, its place in the sequence of its seeds: the copy draws
    from its own sequence, or all the steps of a run would drop the same units.

    Args:
      before: Step, or None.
      left_out: what to leave out.
      name: the prefix of the copies.
      number: which step of its run this is.
    """
    key = tuple(map(id, left_out))
    if key not in self._parts:
      self._parts[key] = self._cut_out(left_out)
    part, wanted, shared = self._parts[key]
    for node in part.node:
      # Without seeds (0 and 0) TensorFlow draws some for each op.
      if 'seed2' in node.attr and (node.attr['seed'].i or node.attr['seed2'].i):
        node.attr['seed2'].i = zlib.crc32(f'{name}/{node.name}'.encode())
    names = [node.name for node in part.node]
    inputs = {word for node in part.node for word in node.input}
    rows = {
      key: step_rows.find_row(batches.fed, number)
      for batches in self._batches
      # As a tensor, and as a control input.
      for key, word in (
        (batches.row.name, batches.row.op.name),
        (f'^{batches.row.op.name}', f'^{batches.row.op.name}'),
      )
      if word in inputs
    }
    with tf.device(None):
      found = tf.import_graph_def(
        part,
        input_map=shared | rows,
        return_elements=[*wanted, *names],
        name=name,
      )
    if before:
      with tf.name_scope(name):
        ends = _Ends(before)
      for op, first_name in zip(found[len(wanted) :], names, strict=True):
        # A variable or a queue belongs to no single step.
        are_states = [x.dtype == tf.resource for x in op.inputs]
        is_first = all(are_states) and not op.control_inputs
        # TensorFlow puts the body of a function or a loop in the place of its
        # call: a variable is then read there as soon as the call may begin,
        # whichever of its other inputs are still missing.
        if is_first or (any(are_states) and op.type in _CALLS):
          # What another worker sends, it sends in the order of the steps: to
          # tell it of the end of each would be a message more.
          if op.type == 'QueueDequeueV2' and _is_elsewhere(op, self._first):
            others = [self._find_latest(first_name)]
          else:
            others = ends.find(op)
          tf_internals.add_control_inputs(op, others)
        if op.type == 'ResourceGather' and not wire.is_on_ps(op):
          _read_in_turn(op)
    self._latest = dict(zip(names, found[len(wanted) :], strict=True))
    step, copies = self._first, iter(found)
    return Step(
      {n: _shape(next(copies), x) for n, x in step.tensors.items()},
      {n: _shape(next(copies), x) for n, x in step.last_step_tensors.items()},
      None if step.count is None else next(copies),
    )

  def _find_latest(self, name: str) -> tf.Operation:
    """Returns an op of the step before, by its name in the first step."""
    op = self._latest.get(name)
    return op or tf.get_default_graph().get_operation_by_name(name)

  def _cut_out(
    self, left_out: Sequence[LeftOut]
  ) -> tuple[tf.GraphDef, list[str], dict[str, tf.Tensor]]:
    """Returns the step without some of its exchanges.

    Returns:
      (part, wanted, shared): its GraphDef, the names of its tensors, and what
      it shares with its copies as {name: tensor}.
    """
    graph, step = tf.get_default_graph(), self._first
    whole = graph.as_graph_def()
    instead = {
      output.op.name: other.op.name
      for exchange in left_out
      for output, other in zip(exchange.outputs, exchange.without, strict=True)
    }
    for node in whole.node:
      for i, word in enumerate(node.input):
        mark, op_name = '^' * word.startswith('^'), word.lstrip('^')
        if op_name in instead:
          node.input[i] = mark + instead[op_name]
    tensors = [*step.tensors.values(), *step.last_step_tensors.values()]
    if step.count is not None:
      tensors.append(step.count)
    wanted = [
      f'{instead.get(tensor.op.name, tensor.op.name)}:{tensor.value_index}'
      for tensor in tensors
    ]
    part = tf.graph_util.extract_sub_graph(
      whole, [word.partition(':')[0] for word in wanted]
    )
    shared = {}
    for node in part.node:
      # An op's place is decided; what it is colocated with may be elsewhere.
      tf_internals.drop_colocation(node)
      outputs = graph.get_operation_by_name(node.name).outputs
      # A loop gives back the variables that it reads, beside what it computes.
      has_state = any(output.dtype == tf.resource for output in outputs)
      if has_state and node.op not in _CALLS:
        shared |= {output.name: output for output in outputs}
    return part, wanted, shared


def _read_in_turn(gather: tf.Operation) -> None:
  """Keeps TensorFlow from reading a variable before its row numbers are there.

  In place of rows that are gathered once each and then summed where they belong
  (tf.nn.embedding_lookup_sparse), its rewrites read the whole variable, and let
  that wait for nothing. They do not if the numbers are copied in between.

  Args:
    gather: a ResourceGather on this worker.
  """
  with tf.name_scope(None), tf.device(gather.device):
    numbers = tf.raw_ops.Snapshot(
      input=gather.inputs[1], name=f'{gather.name}/numbers'
    )
  tf_internals.set_input(gather, 1, numbers)


def _is_elsewhere(op: tf.Operation, step: Step) -> bool:
  """Whether an op is on another worker than the one that makes the steps."""
  places = op.device, step.tensors['global_step'].device
  there, here = (tf.DeviceSpec.from_string(place) for place in places)
  return there.job == 'worker' == here.job and there.task != here.task


def find_origins(op: tf.Operation | None) -> Iterator[tf.Operation]:
  """Yields an op, the op whose gradient it is or which it copies, and so on."""
  while op is not None:
    yield op
    op = tf_internals.find_forward(op) or find_original(op)


def find_original(op: tf.Operation) -> tf.Operation | None:
  """Returns the tf.Operation that `op` is a copy of, or None.

  What is imported, as a copy is, has no traceback; its name ends with that of
  what was copied.
  """
  if op.traceback:
    return None
  words = op.name.split('/')
  for i in range(1, len(words)):
    with contextlib.suppress(KeyError):
      found = op.graph.get_operation_by_name('/'.join(words[i:]))
      if found.type == op.type:
        return found
  return None


def _shape(copy: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
  """Returns the copy of a tensor with the tensor's shape.

  What only Python knows of a shape is in no GraphDef.
  """
  copy.set_shape(tensor.shape)
  return copy
