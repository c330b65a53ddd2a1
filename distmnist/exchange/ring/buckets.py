"""The mean of gradients in buckets: some travel while others are computed.

A backward pass makes the gradients of the last layers first. They fill buckets
in this order, and the all-reduce of a bucket begins as soon as its gradients
are there, while those of earlier layers are computed, as in DDP (Li et al.
2020, arXiv 2006.15704, section 3.2.3). Small gradients share a bucket, as a
collective op costs more than they do.

Which gradients share a bucket follows from the variables alone, so that all
workers agree on it. Each bucket has its own key: it does not matter which
one is full first on which worker.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import collectives
from distmnist.transport import nonfinite, packing


def fill(sizes, bucket_bytes):
  """Returns the buckets, lists of indices: the last first, within each as well.

  A bucket is full once it has `bucket_bytes`.

  Args:
    sizes: list of int, the bytes of each gradient in the order of the layers.
    bucket_bytes: int; 0 puts all in one bucket.
  """
  buckets, held = [[]], 0
  for index in reversed(range(len(sizes))):
    if bucket_bytes and held >= bucket_bytes:
      buckets.append([])
      held = 0
    buckets[-1].append(index)
    held += sizes[index]
  return buckets


def build_means(cluster, gradients, variables, more, key, bucket_bytes):
  """Builds the means over all workers, with the same bits on each.

  A worker's bucket that is not finite goes as zeros. Where the sum of finite
  ones is not, in 16 bits, the mean is zeros on all workers.

  Args:
    cluster: cluster.Cluster.
    gradients: list of float tensors, those of the first layers first.
    variables: list of tf.Variable, with the shapes of `gradients`.
    more: float32 vector of a static shape that travels with the last bucket.
    key: int; the collective ops of the buckets take the keys from here on.
    bucket_bytes: int, see fill.

  Returns:
    (list of tensors, the means of `gradients`; the mean of `more`).
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  means = [None] * len(variables)
  for number, (dtype, indices) in enumerate(buckets):
    parts = [gradients[i] for i in indices]
    like = [variables[i] for i in indices]
    if number == len(buckets) - 1:
      parts.append(more)
      like.append(more)
    sent = packing.flatten(parts, dtype)
    sent = nonfinite.guard(sent, cluster.task_index)
    mean = collectives.build_mean(cluster, sent, key + number)
    mean = nonfinite.check_mean(mean, cluster.task_index)
    found = packing.split_like(mean, like)
    for i, part in zip(indices, found, strict=False):
      means[i] = part
  return means, found[-1]


def build_leave(cluster, variables, more, key, bucket_bytes, timeout_secs):
  """Builds the part, in a step of the others, of a worker that makes no more.

  It gives zeros for gradients, and `more`.

  Args:
    cluster, variables, more, key, bucket_bytes: see build_means.
    timeout_secs: float, see collectives.build_mean.

  Returns:
    the op.
  """
  buckets = _fill_with(cluster, variables, bucket_bytes)
  ops = []
  for number, (dtype, indices) in enumerate(buckets):
    size = sum(variables[i].shape.num_elements() for i in indices)
    sent = tf.zeros([size], dtype)
    if number == len(buckets) - 1:
      sent = tf.concat([sent, tf.cast(more, dtype)], 0)
    mean = collectives.build_mean(cluster, sent, key + number, timeout_secs)
    ops.append(mean.op)
  return tf.group(ops)


def _fill_with(cluster, variables, bucket_bytes):
  """Returns the buckets, a list of (dtype on the wire, list of indices)."""
  groups = {}
  for i, variable in enumerate(variables):
    dtype = find_dtype(cluster, variable)
    groups.setdefault((dtype.size, dtype), []).append(i)
  filled = []
  # The last bucket is one of the small ones: the votes travel with it.
  for (size, dtype), indices in sorted(groups.items(), reverse=True):
    sizes = [variables[i].shape.num_elements() * size for i in indices]
    filled += [
      (dtype, [indices[i] for i in bucket])
      for bucket in fill(sizes, bucket_bytes)
    ]
  return filled


def find_dtype(cluster, variable):
  """Returns the tf.DType in which the gradient of a variable travels.

  It is that of --wire_dtype, which narrows float32: float64 stays as it is.
  """
  dtype = variable.dtype.base_dtype
  return dtype if dtype == tf.float64 else tf.as_dtype(cluster.wire_dtype)


def count_bytes(cluster, variables):
  """Returns the bytes (int) of the gradients of `variables` on the wire."""
  return sum(
    v.shape.num_elements() * find_dtype(cluster, v).size for v in variables
  )
