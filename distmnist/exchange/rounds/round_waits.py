"""The state of a round in which no worker makes progress, read from outside.

A separate graph uses the same shared names as the rule's, so any task can read
the state, and nothing is added to the graph of the training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines, errors
from distmnist.common.names import CHIEF
from distmnist.exchange.rounds import tokens
from distmnist.tables import sparse_sum
from distmnist.transport import ps_state

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.exchange.rounds.sync_round import Round


_TIMEOUT_SECS = 5.0
_OF_A_PS_TIMEOUT_MS = 2000


def describe(the_round: Round, target: str) -> str:
  """Returns how far the round has come, and for whom it waits.

  Args:
    target: the master of this task.
  """
  with tf.Graph().as_default() as graph:
    fetches = _build(the_round)
  config = tf.ConfigProto(
    device_filters=['/job:ps', the_round.cluster.task_device]
  )
  try:
    found = read(target, graph, config, fetches)
  except tf.errors.OpError as error:
    return f'the round cannot be read ({type(error).__name__})'
  return format_state(found, the_round.num_contributions)


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
    token_table = ps_state.Table('round/token_table')
    found = {
      'step': step.read(),
      'token_table': token_table.find(list(range(num_workers)), -1),
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


def format_state(found: Mapping[str, Any], num_needed: int) -> str:
  """Returns one line: how far the round has come, and for whom it waits.

  Args:
    found: the dict of `_build` with tensors' values.
    num_needed: the contributions that make an update, R.
  """
  counts = [n for of_place in found['contributions'].values() for n in of_place]
  least, most = min(counts, default=0), max(counts, default=0)
  num_in = f'{least} to {most}' if least < most else f'{least}'
  # Who has a token has not contributed yet, nor has who has not begun.
  awaited = [
    f'worker {i}' + (', which has not begun' if state < 0 else '')
    for i, state in enumerate(found['token_table'])
    if state != 0
  ]
  num_missing = max(0, num_needed - least)
  if not awaited:
    whom = f'{CHIEF}, the chief, to apply it'
  elif num_missing and num_missing < len(awaited):
    whom = f'{num_missing} of {errors.list_some(awaited)}'
  else:
    whom = errors.list_some(awaited)
  return (
    f'the update of step {found["step"] + 1} has {num_in} of {num_needed} '
    f'contributions and waits for {whom}'
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
