"""The state of a round in which no worker makes progress, read from outside.

A separate graph uses the same shared names as the rule's, so any task can read
the state, and nothing is added to the graph of the training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines
from distmnist.exchange.rounds import tokens
from distmnist.tables import sparse_sum
from distmnist.transport import ps_state

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.exchange.rounds.sync_round import Round


_TIMEOUT_SECS = 5.0
_OF_A_PS_TIMEOUT_MS = 2000


def describe(the_round: Round, target: str) -> str:
  """Returns the tokens of all workers, and what was contributed.

  Args:
    target: the master of this task.
  """
  with tf.Graph().as_default() as graph:
    fetches = _build(the_round)
  config = tf.ConfigProto(
    device_filters=['/job:ps', the_round.cluster.task_device]
  )
  try:
    return format_state(read(target, graph, config, fetches))
  except tf.errors.OpError as error:
    return f'the round cannot be read ({type(error).__name__})'


def read(
  target: str, graph: tf.Graph, config: tf.ConfigProto, fetches: Any
) -> Any:
  """Returns the values of `fetches`, read in a separate session.

  Raises:
    tf.errors.OpError: a ps is gone or does not answer within some seconds.
  """

  def run() -> Any:
    with tf.Session(target, graph=graph, config=config) as session:
      return session.run(fetches)

  return deadlines.call(run, _TIMEOUT_SECS)


def _build(the_round: Round) -> dict[str, Any]:
  """Returns {name: tensor} of the state, in the default graph."""
  num_workers = the_round.cluster.num_workers
  device = the_round.global_step.device
  with tf.device(device):
    step = ps_state.Variable(tf.int64, [], the_round.global_step.op.name)
    queues = [
      tf.FIFOQueue(-1, tf.int64, (), shared_name=f'round/tokens_{i}')
      for i in range(len(the_round.tokens.num_each))
    ]
    token_table, entry = (
      ps_state.Table(f'round/{name}') for name in ('token_table', 'entry')
    )
    found = {
      'step': step.read(),
      'life': entry.find([0], 0)[0],
      'token_table': token_table.find(list(range(num_workers)), -1),
      'tokens': tf.stack([queue.size() for queue in queues]),
    }
  counts = {}
  for accumulator, place in the_round.accumulators:
    with tf.device(place):
      same = sparse_sum.make_same(accumulator)
      counts.setdefault(place, []).append(same.num_accumulated())
  found['contributions'] = {
    place: tf.stack(of_place) for place, of_place in counts.items()
  }
  return found


def format_state(found: Mapping[str, Any]) -> str:
  """Returns one line on `found`, the dict of `_build` with tensors' values."""
  who = []
  for kind, one, several in (
    (1, 'has a token', 'have a token'),
    (0, 'waits', 'wait'),
    (-1, 'has not begun', 'have not begun'),
  ):
    names = [
      f'worker {i}'
      for i, state in enumerate(found['token_table'])
      if state == kind
    ]
    if names:
      who.append(f'{", ".join(names)} {several if names[1:] else one}')
  contributions = [
    f'{place.partition("/device")[0]}: {min(counts)}'
    + (f' to {max(counts)}' if min(counts) < max(counts) else '')
    for place, counts in sorted(found['contributions'].items())
  ]
  tokens = ' '.join(str(n) for n in found['tokens'])
  return (
    f'the round of step {found["step"]}, life {found["life"]}: '
    f'{"; ".join(who)}; tokens left: {tokens}; contributions in '
    f'the accumulators of {", ".join(contributions)}'
  )


class WaitingWorkers:
  """Reads this ps's table of tokens, in its own graph and session."""

  def __init__(self, cluster: Cluster, server: tf.train.Server) -> None:
    """
    Args:
      cluster: cluster.Cluster of a ps.
      server: tf.train.Server of this ps.
    """
    with tf.Graph().as_default() as graph:
      table = tokens.TokenTable(cluster, cluster.cpu_device)
      self._tokens = table.read()
    # The other tasks need not be up.
    config = tf.ConfigProto(device_filters=[cluster.task_device])
    self._session = tf.Session(server.target, graph=graph, config=config)

  def find(self) -> list[str]:
    """Returns their names; empty if no rule has rounds."""
    options = tf.RunOptions(timeout_in_ms=_OF_A_PS_TIMEOUT_MS)
    try:
      tokens = self._session.run(self._tokens, options=options)
    except tf.errors.OpError:
      return []
    return [f'worker {i}' for i, token in enumerate(tokens) if token == 0]

  def close(self) -> None:
    with contextlib.suppress(tf.errors.OpError):
      self._session.close()
