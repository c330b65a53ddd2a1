"""Calls to the heartbeat table before it is known what answers there.

The task that keeps the table (ps 0, or worker 0 where there is no ps) may be
starting, suspended, or missing altogether: another program may answer on
its port, or accept connections and never answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, TypeVar

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli, console

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.cluster import stop_request

_Answer = TypeVar('_Answer')

_RETRY_SECS = 0.05


class TableCalls:
  """Calls the table until it answers, and says whom a task waits for."""

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    is_closed: threading.Event,
    stop: stop_request.StopRequest,
  ) -> None:
    """
    Args:
      is_closed: ends the pause between two tries.
      stop: may end the wait.
    """
    self._name = cluster.coordinator
    self._address = cluster.coordinator_address
    self._is_closed = is_closed
    self._stop = stop

  def call(self, ask: Callable[[], _Answer], deadline: float) -> _Answer:
    """Returns what `ask()` returns, though that may hang for ever.

    Args:
      ask: calls the table.
      deadline: the time.monotonic() at which to give up.

    Raises:
      cli.PassingError: says what is wrong at the address of the table.
    """
    answer: futures.Future[_Answer] = futures.Future()
    threading.Thread(
      target=self._find_answer, args=(answer, ask, deadline), daemon=True
    ).start()
    wait = console.Wait(deadline + 1 - time.monotonic())
    while not answer.done():
      if wait.is_over(f'for an answer of {self._name} at {self._address}'):
        raise cli.PassingError(
          f'{self._name} at {self._address} accepts connections but does not '
          'answer: it is suspended, or another program has that port'
        )
      self._stop.wait(0.01)
    try:
      return answer.result()
    except tf.errors.OpError as error:
      raise cli.PassingError(
        f'what answers at {self._address} is not {self._name} of this cluster '
        f'({errors.explain(error)}): give all tasks the same '
        '--ps_hosts and --worker_hosts, and see what has that port'
      ) from error

  def _find_answer(
    self,
    answer: futures.Future[_Answer],
    ask: Callable[[], _Answer],
    deadline: float,
  ) -> None:
    """Sets what `ask` returns, or the tf.errors.OpError that it raises."""
    # From a task that is starting or ending, or from a foreign program.
    passing = *errors.GONE, tf.errors.DeadlineExceededError
    while True:
      try:
        answer.set_result(ask())
      except passing as error:
        if time.monotonic() < deadline:
          self._is_closed.wait(_RETRY_SECS)
          continue
        answer.set_exception(error)
      except tf.errors.OpError as error:
        answer.set_exception(error)
      return
