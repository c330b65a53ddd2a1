"""lean_updates: what crosses to a ps in an update."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers


@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_a_worker_sends_gradients_and_no_constants(name):
  worker = '/job:worker/task:1'
  hosts = tf.train.ClusterSpec({'ps': ['a:1', 'b:1'], 'worker': ['c:1', 'd:1']})
  setter = tf.train.replica_device_setter(worker_device=worker, cluster=hosts)
  with tf.Graph().as_default() as graph, tf.device(setter):
    variables = [
      tf.get_variable(f'v{i}', [3], use_resource=True) for i in range(2)
    ]
    optimizer = optimizers.make_optimizer(
      name, tf.constant(0.1), weight_decay=0.2
    )
    gradients = [tf.ones([3]) for _ in variables]
    update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
    run = tf.graph_util.extract_sub_graph(graph.as_graph_def(), [update.name])
    ops = [graph.get_operation_by_name(node.name) for node in run.node]
    updates = 'ResourceApply', 'AssignSubVariableOp'
    assert {op.device for op in ops if op.type.startswith(updates)} == {
      variable.device for variable in variables
    }
    sent = {
      tensor
      for op in ops
      for tensor in op.inputs
      if 'ps' in op.device and 'worker' in tensor.device
    }
  assert sent == set(gradients)
