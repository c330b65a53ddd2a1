"""A lock on a ps that outlives the workers that hold it or wait for it.

A tf.CriticalSection unlocks when the worker inside it dies, as the ps then
cancels its step. But TensorFlow 2.21 also unlocks it when a *waiting* worker
dies: Mutex::AcquireAsync (tensorflow/core/kernels/mutex_ops.cc) ends the wait
with `locked_ = !cancelled`, whoever holds the lock. So this lock is two of
them, nested: a worker that the outer one lets in too early waits at the inner
one. One alone fails every time a waiting worker dies. Two were still seen to
fail once in twenty times on an overloaded machine, for an unknown reason: what
is done under a lock must repair itself, as in round_entry.Entry.contribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


class Lock:
  """A lock that all workers know by its name."""

  def __init__(self, device: str, name: str) -> None:
    """
    Args:
      device: of the ps.
      name: the same for all workers.
    """
    with tf.device(device):
      self._outer, self._inner = (
        tf.CriticalSection(name=f'{name}_{part}', shared_name=f'{name}/{part}')
        for part in ('outer', 'inner')
      )

  def execute(self, build: Callable[[], Any]) -> Any:
    """Builds what is done under the lock.

    Args:
      build: callable -> a tensor or a nest of tensors; all ops that it makes
        run under the lock.

    Returns:
      What `build` returned, once the lock is free.
    """

    def enter() -> Any:
      return self._inner.execute(build, exclusive_resource_access=False)

    return self._outer.execute(enter, exclusive_resource_access=False)
