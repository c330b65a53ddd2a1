"""The runs of a loop that may fetch anything: their step, and what they begin.

A lost ps breaks the session of every worker, and a new one follows. What the
script keeps on its own worker then goes on as own_state.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.transport import wire

if TYPE_CHECKING:
  from distmnist.training.hooks import own_state


class OwnBatches:
  """What a script reads, in place of a batch_source.BatchSource.

  Each local step reads one batch; nobody knows of how many examples.

  Attributes:
    known_last_step: the global step at which the training ends; None if the
      script's loop decides.
  """

  unit = 'batches'
  batch_size = 1

  def __init__(
    self,
    batches_per_update: int,
    batches_per_push: int,
    last_step: int | None,
  ) -> None:
    self.dealing = self
    self.images_per_step = batches_per_update
    self.batches_per_push = batches_per_push
    self.known_last_step = last_step


class OwnStepHook(tf.train.SessionRunHook):
  """Knows what each of the script's runs has made.

  Attributes:
    session: the last one.
    last: {'global_step': that after the last run}.
    done: list of {name: number}, the metrics of the step of the last run; empty
      if it made none.
    own_summary: the script's own summary of the last run, if it was due.
  """

  session: tf.Session

  def __init__(
    self,
    tensors: Mapping[str, tf.Tensor],
    global_step: tf.Variable,
    own_state: own_state.OwnState | None = None,
    summary: tf.Tensor | None = None,
    is_summary_due: Callable[[], bool] = lambda: False,
  ) -> None:
    """
    Args:
      tensors: {name: scalar tensor} of a step; `global_step` is the train_op,
        and gives the step after it.
      global_step: int64 scalar variable.
      summary: string scalar tensor, the script's own summary of a step.
      is_summary_due: whether the next step is summarised.
    """
    self._train_op = tensors['global_step']
    self._names = list(tensors)
    # In few tensors: each costs a small step something.
    self._packed = wire.PackedScalars(
      [tf.convert_to_tensor(x) for x in tensors.values()]
    )
    self._summary, self._is_summary_due = summary, is_summary_due
    self._own_state = own_state
    self._read = global_step.read_value()
    self._known: dict[tf.Operation, bool] = {}
    self.last: dict[str, Any] = {}
    self.done: list[dict[str, Any]] = []
    self.own_summary: bytes | None = None

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    self.session = session
    if self._own_state:
      self._own_state.begin_session(session)

  def before_run(
    self, run_context: tf.train.SessionRunContext
  ) -> tf.train.SessionRunArgs:
    if self._own_state:
      self._own_state.note_run(run_context.original_args)
    fetched = tf.nest.flatten(
      run_context.original_args.fetches, expand_composites=True
    )
    ops = [self._train_op.graph.as_graph_element(x) for x in fetched]
    # A run that trains returns the step that it made; a separate read in it
    # would come too early.
    if not any(self._trains(getattr(op, 'op', op)) for op in ops):
      return tf.train.SessionRunArgs({'read': self._read})
    fetches = {'packed': self._packed.fetches}
    if self._summary is not None and self._is_summary_due():
      fetches['summary'] = self._summary
    return tf.train.SessionRunArgs(fetches)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    found, self.done = run_values.results, []
    self.own_summary = found.get('summary')
    if 'read' in found:
      self.last['global_step'] = int(found['read'])
      return
    values = self._packed.unpack(found['packed'])
    step = dict(zip(self._names, values, strict=True))
    self.last['global_step'] = step['global_step']
    self.done = [step]

  def _trains(self, op: tf.Operation) -> bool:
    """Whether running `op` (tf.Operation) makes a step."""
    if op not in self._known:
      self._known[op] = self._train_op.op in find_run(op)
    return self._known[op]


def keep_runnable(
  tensors: Iterable[tf.Tensor], step: Iterable[tf.Tensor]
) -> list[tf.Tensor]:
  """Returns those of a list of tensors that can be fetched with a step.

  The others need something fed, or read, that a step does not: what is for an
  evaluation, say.

  Args:
    tensors: list of tensors.
    step: list of the tensors of a step.
  """
  known = set().union(*(_find_sources(x.op) for x in step))
  return [x for x in tensors if _find_sources(x.op) <= known]


def _find_sources(op: tf.Operation) -> set[tf.Operation]:
  """Returns the ops behind `op` that are fed, or that take from an input."""
  return {
    found
    for found in find_run(op)
    if found.type == 'Placeholder'
    or 'IteratorGetNext' in found.type
    or 'Dequeue' in found.type
  }


def find_run(op: tf.Operation) -> set[tf.Operation]:
  """Returns the set of tf.Operation that running `op` runs, with itself."""
  seen, left = {op}, [op]
  while left:
    last = left.pop()
    before = {x.op for x in last.inputs} | {*last.control_inputs}
    left += before - seen
    seen |= before
  return seen
