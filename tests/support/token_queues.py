"""The tokens of a worker in one process, whose rounds a test ends."""

import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import round_entry, tokens


class Built:
  """The tokens of worker 0 in rounds of R of N, run in one session."""

  def __init__(self, session, num_contributions, num_workers=2):
    self._session = session
    self.step = tf.get_variable(
      'global_step', initializer=tf.constant(0, tf.int64)
    )
    hosts = ('p:1',), tuple(f'w{i}:1' for i in range(num_workers))
    member = cluster_lib.make_cluster(*hosts, 'worker', 0)
    entry = round_entry.Entry(member, num_contributions, self.step)
    self.tokens = tokens.make(
      member, num_contributions, entry, self.step.device
    )
    session.run(tf.global_variables_initializer())
    session.run(entry.begin_life(lambda token: tf.no_op()))

  def run(self, fetch):
    return self._session.run(fetch)

  def end_round(self):
    with tf.control_dependencies([self.step.assign_add(1)]):
      self.run(self.tokens.end_round())

  def count(self):
    return self.run([queue.size() for queue in self.tokens._queues])
