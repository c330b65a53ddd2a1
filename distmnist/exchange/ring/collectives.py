"""TensorFlow's collective ops between all workers, by a ring and with no ps.

An op runs once every worker has reached the op with the same key; if a worker
is lost, it fails on all others, now and ever after. A key stands for one shape
as long as the servers live.
"""

import tensorflow.compat.v1 as tf

from distmnist.transport import packing


def build_mean(cluster, flat, key, timeout_secs=0.0):
  """Returns the mean of all workers' `flat`, with the same bits on each.

  Args:
    cluster: cluster.Cluster.
    flat: float64, float32, float16 or bfloat16 [size].
    key: int, the name of this op.
    timeout_secs: float, seconds until it fails; 0 for never.
  """
  return tf.raw_ops.CollectiveReduceV2(
    input=flat,
    group_size=cluster.num_workers,
    group_key=1,
    instance_key=key,
    ordering_token=[],
    merge_op='Add',
    final_op='Div',
    timeout_seconds=timeout_secs,
  )


def build_broadcast(cluster, variables, key):
  """Returns an op that gives all workers the chief's values of `variables`.

  It waits for the other workers for up to start_timeout_secs.

  Args:
    cluster: cluster.Cluster.
    variables: list of tf.Variable of one dtype.
    key: int, the name of this op.
  """
  settings = {
    'group_size': cluster.num_workers,
    'group_key': 1,
    'instance_key': key,
    # TensorFlow takes 0 as no limit.
    'timeout_seconds': max(1.0, cluster.start_timeout_secs),
  }
  if cluster.is_chief:
    flat = packing.flatten([v.read_value() for v in variables])
    return tf.raw_ops.CollectiveBcastSendV2(input=flat, **settings)
  flat = tf.raw_ops.CollectiveBcastRecvV2(
    T=variables[0].dtype.base_dtype,
    shape=[sum(v.shape.num_elements() for v in variables)],
    **settings,
  )
  values = packing.split_like(flat, variables)
  return tf.group(
    *(v.assign(x) for v, x in zip(variables, values, strict=True))
  )
