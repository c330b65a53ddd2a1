"""The mean of gradients in buckets: some travel while others are computed.

A backward pass makes the gradients of the last layers first. They fill buckets
in this order, and the all-reduce of a bucket begins as soon as its gradients
are there, while those of earlier layers are computed, as in DDP (Li et al.
2020, arXiv 2006.15704, section 3.2.3). Small gradients share a bucket, as a
message costs more than they do.

Which gradients share a bucket follows from the variables alone, so that all
workers agree on it. Each bucket has its own name: it does not matter which
one is full first on which worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import all_reduce
from distmnist.transport import nonfinite, packing

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


def fill(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
  """Returns the buckets, lists of indices: the last first, within each as well.

  A bucket is full once it has `bucket_bytes`.

  Args:
    sizes: the bytes of each gradient in the order of the layers.
    bucket_bytes: 0 puts all in one bucket.
  """
  buckets, held = [[]], 0
  for index in reversed(range(len(sizes))):
    if bucket_bytes and held >= bucket_bytes:
      buckets.append([])
      held = 0
    buckets[-1].append(index)
    held += sizes[index]
  return buckets


def build_means(
  cluster: Cluster,
  gradients: Sequence[tf.Tensor],
  variables: Sequence[tf.Variable],
  more: tf.Tensor,
  bucket_bytes: int,
) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Builds the means over all workers, with the same bits on each.

  A worker's bucket that is not finite goes as zeros. Where the mean of finite
  ones of 16 bits is not, as its sum is not, it is zeros on all workers.

  Args:
    gradients: float tensors, those of the first layers first.
    variables: with the shapes of `gradients`.
    more: float32 vector of a static shape that travels with the last bucket.
    bucket_bytes: see fill.

  Returns:
    (list of tensors, the means of `gradients`; the mean of `more`).
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  means = [None] * len(variables)
  for number, bucket in enumerate(buckets):
    indices = bucket.indices
    parts = [gradients[i] for i in indices]
    like = [variables[i] for i in indices]
    if number == len(buckets) - 1:
      parts.append(more)
      like.append(more)
    size = sum(x.shape.num_elements() for x in like)
    # A gradient's shape may be known only as the step runs.
    sent = tf.ensure_shape(packing.flatten(parts, bucket.dtype), [size])
    sent = nonfinite.guard(sent, cluster.task_index)
    mean = all_reduce.build_mean(cluster, sent, _name(number), bucket.in_chunks)
    mean = nonfinite.check_mean(mean, cluster.task_index)
    found = packing.split_like(mean, like)
    for i, part in zip(indices, found, strict=False):
      means[i] = part
  return means, found[-1]


def build_leave(
  cluster: Cluster,
  variables: Sequence[tf.Variable],
  more: tf.Tensor,
  bucket_bytes: int,
  has_failed: bool,
) -> tf.Operation:
  """Builds the part, in a step of the others, of a worker that makes no more.

  It gives zeros for gradients, and `more`.

  Args:
    cluster, variables, more, bucket_bytes: see build_means.
    has_failed: whether this worker's own part of that step has failed, see
      all_reduce.build_farewell.
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  ops = []
  for number, bucket in enumerate(buckets):
    sent = tf.zeros([bucket.num_bytes // bucket.dtype.size], bucket.dtype)
    if number == len(buckets) - 1:
      sent = tf.concat([sent, tf.cast(more, bucket.dtype)], 0)
    build = all_reduce.build_farewell if has_failed else all_reduce.build_mean
    ops.append(build(cluster, sent, _name(number), bucket.in_chunks))
  return tf.group(ops)


def _name(number: int) -> str:
  return f'bucket_{number}'


class _Bucket(NamedTuple):
  """What travels as one.

  Attributes:
    dtype: tf.DType on the wire.
    indices: the variables whose gradients share it.
    num_bytes: of these gradients.
    in_chunks: see all_reduce.build_mean.
  """

  dtype: tf.DType
  indices: list[int]
  num_bytes: int
  in_chunks: bool


def _fill_with(
  cluster: Cluster,
  variables: Sequence[tf.Variable],
  bucket_bytes: int,
) -> list[_Bucket]:
  """Returns the buckets."""
  groups = {}
  for i, variable in enumerate(variables):
    dtype = find_dtype(cluster, variable)
    groups.setdefault((dtype.size, dtype), []).append(i)
  filled = []
  # The last bucket is one of the small ones: the votes travel with it.
  for (size, dtype), indices in sorted(groups.items(), reverse=True):
    sizes = [variables[i].shape.num_elements() * size for i in indices]
    for bucket in fill(sizes, bucket_bytes):
      num_bytes = sum(sizes[i] for i in bucket)
      in_chunks = all_reduce.pays_to_cut(cluster.num_workers, num_bytes)
      of_all = [indices[i] for i in bucket]
      filled.append(_Bucket(dtype, of_all, num_bytes, in_chunks))
  return filled


def find_dtype(cluster: Cluster, variable: tf.Variable) -> tf.DType:
  """Returns the tf.DType in which the gradient of a variable travels.

  It is that of --wire_dtype, which narrows float32: float64 stays as it is.
  """
  dtype = variable.dtype.base_dtype
  return dtype if dtype == tf.float64 else tf.as_dtype(cluster.wire_dtype)


def count_sent(
  cluster: Cluster,
  variables: Sequence[tf.Variable],
  bucket_bytes: int,
) -> int:
  """Returns the bytes of gradients that a worker sends in a step.

  It gets as many.

  Args:
    cluster, variables, bucket_bytes: see build_means.
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  n = cluster.num_workers
  return round(sum(all_reduce.count_sent(n, b.num_bytes) for b in buckets))


def describe(
  cluster: Cluster,
  variables: Sequence[tf.Variable],
  bucket_bytes: int,
) -> list[str]:
  """Returns in which way the buckets travel, and why, a list of lines.

  Args:
    cluster, variables, bucket_bytes: see build_means.
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  hop = f'{all_reduce.HOP_BYTES:,} bytes'
  why = f'in two hops each would take at most {hop} less'
  if cluster.num_workers == 2:
    why = 'between two workers no way takes less'
  ways = {
    False: f'all send all, in one hop; {why}',
    True: 'worker j adds up chunk j of all and sends the mean to all, in two '
    f'hops; in one each would take over {hop} more',
  }
  sizes = {
    in_chunks: [b.num_bytes for b in buckets if b.in_chunks == in_chunks]
    for in_chunks in ways
  }
  return [
    f'{len(found)} bucket{"s" if len(found) > 1 else ""} of {sum(found):,} '
    f'bytes: {ways[in_chunks]}'
    for in_chunks, found in sizes.items()
    if found
  ]
