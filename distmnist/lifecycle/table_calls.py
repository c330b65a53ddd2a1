"""Calls to the heartbeat table before it is known what answers there.

The task that keeps the table (ps 0, or worker 0 where there is no ps) may be
starting, suspended, or missing altogether: another program may answer on
its port, or accept connections and never answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli, console

_RETRY_SECS = 0.05


class TableCalls:
  """Calls the table until it answers, and says whom a task waits for."""

  def __init__(self, cluster, is_closed, stop) -> None:
    """
    Args:
      cluster: cluster.Cluster.
      is_closed: threading.Event, ends the pause between two tries.
      stop: stop_request.StopRequest, which may end the wait.
    """
    self._name = cluster.coordinator
    self._address = cluster.coordinator_address
    self._is_closed = is_closed
    self._stop = stop

  def call(
    self, ask: Callable[..., Any], deadline: float
  ) -> str | tuple[dict[str, int | str], dict[str, int | str]] | None:
    """Returns what `ask()` returns, though that may hang for ever.

    Args:
      ask: callable that calls the table.
      deadline: float, the time.monotonic() at which to give up.

    Raises:
      cli.PassingError: says what is wrong at the address of the table.
    """
    answers = queue.Queue()
    threading.Thread(
      target=self._put_answer, args=(answers, ask, deadline), daemon=True
    ).start()
    wait = console.Wait(deadline + 1 - time.monotonic())
    while answers.empty():
      if wait.is_over(f'for an answer of {self._name} at {self._address}'):
        raise cli.PassingError(
          f'{self._name} at {self._address} accepts connections but does not '
          'answer: it is suspended, or another program has that port'
        )
      self._stop.wait(0.01)
    answer = answers.get()
    if isinstance(answer, tf.errors.OpError):
      raise cli.PassingError(
        f'what answers at {self._address} is not {self._name} of this cluster '
        f'({errors.explain(answer)}): give all tasks the same '
        '--ps_hosts and --worker_hosts, and see what has that port'
      ) from answer
    return answer

  def _put_answer(
    self, answers, ask: Callable[..., Any], deadline: float
  ) -> None:
    """Puts what `ask` returns, or the tf.errors.OpError that it raises."""
    # From a task that is starting or ending, or from a foreign program.
    passing = *errors.GONE, tf.errors.DeadlineExceededError
    while True:
      try:
        answers.put(ask())
      except passing as error:
        if time.monotonic() < deadline:
          self._is_closed.wait(_RETRY_SECS)
          continue
        answers.put(error)
      except tf.errors.OpError as error:
        answers.put(error)
      return
