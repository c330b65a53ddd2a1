"""center_adder: changes that are added as they come, or all together."""

import tensorflow.compat.v1 as tf

from distmnist.exchange import center_adder
from distmnist.exchange.copies import local_copies


def test_only_a_synchronous_one_has_a_hook(tf_session, make_cluster):
  member = make_cluster(1, 2).worker(0)
  with tf.device(member.device_setter()):
    copies = local_copies.LocalCopies(member)
    global_step = tf.train.get_or_create_global_step()
    with copies.scope():
      tf.get_variable('w', [1])
    hooks = [
      center_adder.make(is_sync, member, copies, global_step, list).hooks(None)
      for is_sync in (False, True)
    ]
  assert [len(each) for each in hooks] == [0, 1]
