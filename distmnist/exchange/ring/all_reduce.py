"""The mean of all workers' vectors, by FIFO queues between them, with no ps.

What worker i sends to worker j it puts into a queue on its own server. Worker j
takes it from there, by an op on that server: it travels as one message, at once
if j waits for it already. So whoever waits for a worker has a call open to it,
which fails as soon as that worker is lost, and nothing stays broken.

There are two ways, for n workers with vectors of M bytes:

  all send all      Each sends its vector to all others, and adds up all n. One
                    hop; a worker sends, and gets, (n - 1) M bytes.
  owners of chunks  Worker j gets chunk j of all, and sends the mean of it to
                    all. Two hops; a worker sends, and gets, 2 (n - 1) / n M
                    bytes, the fewest that are possible.

The second is a reduce-scatter by pairwise exchange and an all-gather (Thakur et
al. 2005, IJHPCA 19(1)), each in one hop. A ring of chunks (Patarasuk and Yuan
2009, JPDC 69(2)) sends as many bytes in 2 (n - 1) hops.

Either way the workers' numbers are added up in one order, in the dtype of
transport/sums.py, divided by n, and rounded once to the dtype that is sent: all
workers get the same bits, the same in every run. With fewer than 16 workers it
is the order of the workers, and both ways give the same (but for a chunk of a
single number).

A queue holds two messages at most: a worker ends a step only with what the
others sent in it, and they begin it only once they have taken what it sent in
the step before. Which sessions have queues in common is said by generations.py.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.transport import sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


# What another hop is worth. On two cores it takes some 0.3 ms, in which a link
# of 2 Gbit/s carries about this much; a slower link would pay for more.
HOP_BYTES = 2**16
# What the names of all queues begin with.
PREFIX = 'ring/'
_CAPACITY = 2


def pays_to_cut(num_workers: int, num_bytes: int) -> bool:
  """Whether to use chunks with owners: if they spare more than HOP_BYTES.

  With two workers they spare nothing.

  Args:
    num_workers: n.
    num_bytes: M.
  """
  n = num_workers
  return (n - 1) * num_bytes - 2 * (n - 1) / n * num_bytes > HOP_BYTES


def count_sent(num_workers: int, num_bytes: int) -> float:
  """Returns the bytes that a worker sends for a mean, as it gets.

  Where the chunks differ by an element, it is the mean of the workers.

  Args:
    num_workers: n.
    num_bytes: M.
  """
  n = num_workers
  of_each = 2 * (n - 1) / n if pays_to_cut(n, num_bytes) else n - 1
  return of_each * num_bytes


def build_mean(
  cluster: Cluster, flat: tf.Tensor, name: str, in_chunks: bool
) -> tf.Tensor:
  """Returns the mean of all workers' `flat`, with the same bits on each.

  Args:
    cluster: cluster.Cluster of two workers or more.
    flat: float64, float32, float16 or bfloat16 [size].
    name: the same on all workers, and of no other exchange.
    in_chunks: whether chunks have owners; the same on all.
  """
  if not in_chunks:
    return sums.build_mean(build_all(cluster, flat, name))
  chunks = _cut(flat, cluster.num_workers)
  own = chunks[cluster.task_index]
  parts = _exchange(cluster, chunks, [own] * len(chunks), _name_parts(name))
  mean = sums.build_mean(parts)
  means = _exchange(cluster, [mean] * len(chunks), chunks, _name_means(name))
  return tf.concat(means, 0)


def build_farewell(
  cluster: Cluster, flat: tf.Tensor, name: str, in_chunks: bool
) -> tf.Operation:
  """Sends what `build_mean` would send, but takes nothing from anybody.

  For a worker of which a step has failed, and may have taken what the others
  sent. The mean of its own chunk is that of `flat` and zeros.

  Args:
    cluster, flat, name, in_chunks: see build_mean.
  """
  n = cluster.num_workers
  if not in_chunks:
    return tf.group(_send(cluster, [flat] * n, name))
  chunks = _cut(flat, n)
  own = chunks[cluster.task_index]
  mean = sums.build_mean([own] + [tf.zeros_like(own)] * (n - 1))
  return tf.group(
    _send(cluster, chunks, _name_parts(name)),
    _send(cluster, [mean] * n, _name_means(name)),
  )


def build_all(
  cluster: Cluster, tensor: tf.Tensor, name: str
) -> list[tf.Tensor]:
  """Returns a list of all workers' `tensor`, in the order of the workers.

  Args:
    tensor: with the same static shape on all.
    name: see build_mean.
  """
  tensors = [tensor] * cluster.num_workers
  return _exchange(cluster, tensors, tensors, name)


def fingerprint(variables: Iterable[tf.Variable]) -> int:
  """Returns a number that differs where names, shapes or dtypes do."""
  told = [(v.op.name, v.shape.as_list(), v.dtype.name) for v in variables]
  return zlib.crc32(repr(told).encode())


def _name_parts(name: str) -> str:
  return f'{name}/parts'


def _name_means(name: str) -> str:
  return f'{name}/means'


def _cut(flat: tf.Tensor, num_chunks: int) -> list[tf.Tensor]:
  """Returns `flat` cut into chunks; the first may be one longer."""
  size, num_longer = divmod(flat.shape.num_elements(), num_chunks)
  return tf.split(flat, [size + (i < num_longer) for i in range(num_chunks)])


def _exchange(
  cluster: Cluster,
  to_each: Sequence[tf.Tensor],
  from_each: Sequence[tf.Tensor],
  name: str,
) -> list[tf.Tensor]:
  """Sends one tensor to each worker; returns what they send, and the own one.

  Args:
    to_each: one for each worker.
    from_each: like those that come from each worker.
    name: see build_mean.

  Returns:
    list of tensors, in the order of the workers.
  """
  with tf.control_dependencies(_send(cluster, to_each, name)):
    own = tf.identity(to_each[cluster.task_index])
  return [
    own if i == cluster.task_index else _take(cluster, like, i, name)
    for i, like in enumerate(from_each)
  ]


def _send(
  cluster: Cluster, to_each: Sequence[tf.Tensor], name: str
) -> list[tf.Operation]:
  """Returns the ops that send one tensor to each other worker."""
  return [
    _put(cluster, tensor, i, name)
    for i, tensor in enumerate(to_each)
    if i != cluster.task_index
  ]


def _put(
  cluster: Cluster, tensor: tf.Tensor, receiver: int, name: str
) -> tf.Operation:
  """Returns the op that sends a tensor to worker `receiver`."""
  pair = f'{name}/{cluster.task_index}_to_{receiver}'
  with tf.device(cluster.cpu_device):
    return build_queue([tensor], pair).enqueue(tensor)


def _take(
  cluster: Cluster, like: tf.Tensor, sender: int, name: str
) -> tf.Tensor:
  """Returns what worker `sender` sends to this one.

  Args:
    like: tensor of the same dtype and shape.
    name: see build_mean.
  """
  pair = f'{name}/{sender}_to_{cluster.task_index}'
  with tf.device(find_device(cluster, sender)):
    return build_queue([like], pair).dequeue()


def find_device(cluster: Cluster, worker: int) -> str:
  """Returns the device of the queues with what `worker` sends."""
  return dataclasses.replace(cluster, task_index=worker).cpu_device


def build_queue(
  like: Sequence[tf.Tensor | tf.Variable], name: str, capacity: int = _CAPACITY
) -> tf.FIFOQueue:
  """Returns a tf.FIFOQueue on the current device.

  Args:
    like: a message in dtypes and shapes.
    name: of no other queue there.
    capacity: messages.
  """
  return tf.FIFOQueue(
    capacity,
    [x.dtype.base_dtype for x in like],
    [x.shape for x in like],
    shared_name=f'{PREFIX}{name}',
  )
