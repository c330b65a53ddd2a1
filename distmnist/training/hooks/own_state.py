"""What a script's own graph keeps on its worker when a session is lost.

A lost ps breaks the session of every worker, and a new one follows. Resources
that have a name on the worker's server outlive it: local variables, and what
`keep_tables_and_queues` names. Others belong to their session. An iterator
cannot be kept: a read that is cut off leaves it at its end.
"""

from __future__ import annotations

import logging
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.training.hooks import own_step_hook

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
      run = own_step_hook.find_run(op)
      self._starts[op] = [x for x in run if x.type == _STARTS]
    return self._starts[op]
