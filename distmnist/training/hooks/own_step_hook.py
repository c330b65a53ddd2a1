"""The runs of a loop that may fetch anything: their step, and what they begin.

A lost ps breaks the session of every worker, and a new one follows. Resources
that have a name on the worker's server outlive it: local variables, and what
`keep_tables_and_queues` names. Others belong to their session. An iterator
cannot be kept: a read that is cut off leaves it at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.transport import wire

_log = logging.getLogger(__name__)

_QUEUES = (
  *('FIFOQueueV2', 'PaddingFIFOQueueV2'),
  *('PriorityQueueV2', 'RandomShuffleQueueV2'),
)
_TABLES = (
  'MutableHashTableV2',
  'MutableHashTableOfTensorsV2',
  'MutableDenseHashTableV2',
)
_ONE_SHOT = 'OneShotIterator'
_STARTS = 'MakeIterator'


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
    own_state: OwnState | None = None,
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


def keep_tables_and_queues(graph: tf.Graph) -> None:
  """Gives mutable tables and queues of this worker a name on its server.

  Not a queue with a QueueRunner, which closes it with its session.
  """
  for op in graph.get_operations():
    is_here = tf.DeviceSpec.from_string(op.device).job != 'ps'
    is_kept = op.type in _TABLES or (
      op.type in _QUEUES and op.name not in _find_run_queues(graph)
    )
    if is_here and is_kept and not op.get_attr('shared_name'):
      name = tf.AttrValue(s=op.name.encode())
      tf_internals.set_attr(op, 'shared_name', name)


def _find_run_queues(graph: tf.Graph) -> set[str]:
  runners = graph.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
  return {runner.name for runner in runners}


class OwnState:
  """Begins iterators again in a new session, as the script has begun them.

  What an initializer was fed with is kept: with a placeholder it is data.
  """

  def __init__(self, graph: tf.Graph) -> None:
    """
    Args:
      graph: all of the script's.
    """
    self._graph = graph
    self._set_back = sorted(
      [op.name for op in graph.get_operations() if op.type == _ONE_SHOT]
      + [*_find_run_queues(graph)]
    )
    # What is fetched: the initializers that it runs.
    self._starts: dict[tf.Operation, list[tf.Operation]] = {}
    # Initializer: the feed that it ran with last.
    self._begun: dict[tf.Operation, Any] = {}
    self._is_first = True

  def begin_session(self, session: tf.Session) -> None:
    """Begins them in a session that follows another."""
    if self._is_first:
      self._is_first = False
      return
    # Those of one call are independent of each other.
    for op, feed in self._begun.items():
      session.run(op, feed)
    names = sorted(op.inputs[1].op.name for op in self._begun)
    if names := names + self._set_back:
      _log.info(
        f'these begin again, as their session was lost: {", ".join(names)} '
        '(docs/own_loop.md says what is kept)'
      )

  def note_run(self, given: tf.train.SessionRunArgs) -> None:
    """Notes the iterators that a run begins, by its tf.train.SessionRunArgs."""
    for fetched in tf.nest.flatten(given.fetches, expand_composites=True):
      element = self._graph.as_graph_element(fetched)
      for op in self._find_starts(getattr(element, 'op', element)):
        self._begun[op] = given.feed_dict

  def _find_starts(self, op: tf.Operation) -> list[tf.Operation]:
    """Returns the list of initializers of iterators that running `op` runs."""
    if op not in self._starts:
      run = find_run(op)
      self._starts[op] = [x for x in run if x.type == _STARTS]
    return self._starts[op]
