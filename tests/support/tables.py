"""A model with two sparse tables, each with a width of its own."""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.data import seeds
from distmnist.exchange.center import center
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoints
from distmnist.nn import layers, optimizers, sparse_updates
from distmnist.strategies import (
  async_sgd,
  dc_asgd,
  drop_stale,
  ringmaster,
  ssp,
  staleness_aware,
  sync_sgd,
)
from distmnist.tables import (
  key_hash,
  key_map,
  key_shard,
  new_rows,
  sparse_table,
  touched_rows,
)
from distmnist.transport import sharding
from tests.support import in_process

# The rules that take tables and have no rounds.
ASYNCHRONOUS = (
  *(async_sgd, ssp, staleness_aware, drop_stale, ringmaster),
  dc_asgd,
)
NUM_ROWS, STEPS, BATCH, RATE = 100, 4, 12, 0.01
_RNG = np.random.default_rng(5)
IDS = _RNG.integers(0, NUM_ROWS, [STEPS, BATCH, 3])
IDS[:, :, 0] %= 7  # Many occur twice, in a batch and between workers.
Y = _RNG.normal(size=[STEPS, BATCH]).astype(np.float32)


def make_lock_step(member):
  return sync_sgd.SyncSgd(member, member.num_workers)


def start_at(seed, width):
  """Returns an initializer by which each row has the same start everywhere."""
  rng = np.random.default_rng(seed)
  whole = rng.normal(size=[sparse_table.count_positions(NUM_ROWS), width])

  def initialize(shape, dtype=None, partition_info=None):
    begin = partition_info.var_offset[0] if partition_info else 0
    return tf.constant(whole[begin : begin + shape[0]], dtype)

  return initialize


def build_outputs(ids, widths, starts=None):
  """Returns float32 [n] of ids [n, 3]; tables a and b, and a weight."""
  starts = starts or [start_at(1, widths[0]), start_at(2, widths[1])]
  a = layers.embedding(ids, NUM_ROWS, widths[0], 'a', initializer=starts[0])
  b = layers.embedding(
    ids[:, 1:],
    NUM_ROWS,
    widths[1],
    'b',
    combiner='sum',
    initializer=starts[1],
  )
  again = layers.embedding(ids[:, 0], NUM_ROWS, widths[0], 'a')
  return _sum(a, b, again)


def find_keys(ids, table):
  """Returns what `build_by_keys` looks up in 'a' or 'b', int64 [n]."""
  if table == 'a':
    return (ids - 50) * 2**45
  return key_hash.find_fingerprints(tf.strings.as_string(ids))


def start_as_made(table, width):
  """Returns an initializer: row r begins as that of its key is made."""
  drawn = tf.random_uniform_initializer(-(width**-0.5), width**-0.5)
  start = new_rows.Start(new_rows.NewRows(NUM_ROWS), '', drawn)

  def initialize(shape, dtype=None, partition_info=None):
    begin = partition_info.var_offset[0] if partition_info else 0
    positions = tf.range(begin, begin + shape[0], dtype=tf.int64)
    num_positions = sparse_table.count_positions(NUM_ROWS)
    keys = find_keys(sparse_table.find_id(positions, num_positions), table)
    seed = seeds.derive_first(f'{table}/rows')
    return tf.cast(start.make_rows(keys, width, seed), dtype)

  return initialize


def build_by_keys(ids, widths):
  """Returns what `build_outputs` does, of tables whose rows are made.

  The keys of table a are far from 0, and those of b are text.
  """
  keys = find_keys(ids, 'a')
  a = layers.embedding(keys, layers.NewRows(NUM_ROWS), widths[0], 'a')
  b = layers.embedding(
    tf.strings.as_string(ids[:, 1:]),
    layers.NewRows(NUM_ROWS),
    widths[1],
    'b',
    combiner='sum',
  )
  again = layers.embedding(keys[:, 0], layers.NewRows(NUM_ROWS), widths[0], 'a')
  return _sum(a, b, again)


def build_as_made(ids, widths):
  """Returns what `build_by_keys` does, of tables that have all rows at once."""
  starts = [start_as_made('a', widths[0]), start_as_made('b', widths[1])]
  return build_outputs(ids, widths, starts)


def _sum(a, b, again):
  w = tf.get_variable('w', again.shape[1:], initializer=tf.ones_initializer())
  return (
    tf.reduce_sum(a, [1, 2])
    + tf.reduce_sum(b**2, 1)
    + tf.reduce_sum(again * w, 1)
  )


class Model:
  """The model under a rule, and what a step tells.

  Attributes:
    update: strategy.Update.
    trained: list of tf.Variable, the shards of all that is trained.
    hooks: list of SessionRunHook.
  """

  def __init__(
    self,
    member,
    rule,
    optimizer,
    num_examples,
    widths=(3, 3),
    build=build_outputs,
  ):
    seeds.set_seed(5)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      self.ids = tf.placeholder(tf.int64, [num_examples, 3])
      self.y = tf.placeholder(tf.float32, [num_examples])
      with sharding.sharded(member.num_ps), rule.scope():
        outputs = build(self.ids, widths)
      loss = tf.reduce_mean((outputs - self.y) ** 2)

      def make(is_local=False, rate_factor=None):
        del is_local
        factor = 1 if rate_factor is None else rate_factor
        return optimizers.make_optimizer(optimizer, RATE * factor)

      self.trained = tf.trainable_variables()
      slots = sparse_updates.RowSlots()
      self.update = rule.minimize(loss, slots.watch(make), global_step)
      key_shard.connect_all(slots.begin)
      self.hooks = rule.hooks(in_process.NoStop())
      self.clear_touched = touched_rows.build_clear_all()

  def read(self, session):
    """Returns {name: array}; of rows that are made, in the order of keys."""
    with session.graph.as_default():
      values = checkpoints.fetch_whole(session, tf.global_variables())
    found = {}
    for shard in self.trained:
      name = shard.op.name.split('/part_')[0]
      found[name] = values[name]
      keys = values.get(name.replace('/rows', '/keys'))
      if keys is not None:
        order = np.argsort(keys)
        is_key = keys[order] >= new_rows.LOWEST_KEY
        found[name] = found[name][order[is_key]]
        found[name.replace('/rows', '/keys')] = keys[order[is_key]]
    return found

  def feed(self, step, index=0, num_workers=1):
    n = BATCH // num_workers
    part = slice(index * n, (index + 1) * n)
    return {self.ids: IDS[step, part], self.y: Y[step, part]}


def train_alone(make_rule, optimizer, widths, build=build_outputs):
  """Returns {name: array} of one process that takes the whole batches."""
  with tf.Graph().as_default():
    member = cluster_lib.Cluster()
    model = Model(member, make_rule(member), optimizer, BATCH, widths, build)
    scaffold = tf.train.Scaffold(init_fn=lambda _, s: key_map.fill(s))
    creator = tf.train.ChiefSessionCreator(scaffold)
    with tf.train.MonitoredSession(creator, model.hooks) as session:
      for step in range(STEPS):
        session.run(model.update.train_op, model.feed(step))
      return model.read(session)


def train(cluster, make_rule, optimizer, widths, build=build_outputs):
  """Returns what `train_alone` does, of workers that share each batch."""
  n = cluster.num_workers

  def work(index):
    member = cluster.worker(index)
    rule = make_rule(member)
    model = Model(member, rule, optimizer, BATCH // n, widths, build)
    with cluster.make_session(index, model.hooks) as session:
      for step in range(STEPS):
        session.run(model.update.train_op, model.feed(step, index, n))
      return model.read(session)

  return cluster.run_workers(work)[0]


def save_on_two_ps_and_restore_on_three(make_cluster, build, read, path):
  """Returns what `read` found before it was saved, and once restored (list).

  Args:
    make_cluster: the fixture.
    build: callable(cluster.Cluster) -> (Model, saver).
    read: callable(tf.Session, Model).
    path: str, of the checkpoint.
  """
  found = []
  for num_ps in (2, 3):
    cluster = make_cluster(num_ps, 1)
    with tf.Graph().as_default():
      model, saver = build(cluster.worker(0))
      restorer = restoring.Restorer(slice_bytes=300)
      with tf.Session(cluster.servers[0].target) as session:
        if found:
          restorer.restore(session, path)
          key_map.fill(session)
        else:
          session.run(tf.global_variables_initializer())
          key_map.fill(session)
          session.run(model.update.train_op, model.feed(0))
          saver.save(session, path)
        found.append(read(session, model))
  return found


class KeyStep:
  """A worker's step that adds 1 to each number of the rows of its keys.

  Attributes:
    keys, rows: placeholder [n], float32 [n, width].
    gradients: (values, indices) of each shard.
    parts: the KeyShard of each ps.
  """

  def __init__(self, member, made, width, optimizer='sgd', dtype=tf.int64):
    """
    Args:
      made: new_rows.NewRows.
      optimizer: its name, at a rate of 1.
      dtype: of the keys.
    """
    seeds.set_seed(3)
    self.center = the_center = center.Center(member)
    with tf.device(member.device_setter()), the_center.scope():
      self.keys = tf.placeholder(dtype, [None])
      self.rows = layers.embedding(self.keys, made, width, 'user')
    self.slots = sparse_updates.RowSlots()
    optimizer = self.slots.watch(
      lambda **_: optimizers.make_optimizer(optimizer, 1.0, momentum=0.0)
    )()
    pairs = the_center.to_shards(
      the_center.compute_gradients(optimizer, -tf.reduce_sum(self.rows))
    )
    self.apply = optimizer.apply_gradients(pairs)
    self.gradients = [(g.values, g.indices) for g, _ in pairs]
    self.parts = key_map.get_all(tf.get_default_graph())
    key_shard.connect_all(self.slots.begin)

  def run(self, session, keys):
    """Returns the rows of `keys`, before they were changed."""
    return session.run([self.rows, self.apply], {self.keys: keys})[0]
