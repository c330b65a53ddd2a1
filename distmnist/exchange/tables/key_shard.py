"""Makes rows on a ps for the keys that a worker asks for.

  found <- the map of the keys;  missing <- keys that are not found
  in turn with all other workers, and only if there is one that is missing:
    look again; for each that is still not there, if its bucket has a free row:
      the row and what the optimizer keeps beside it <- their first values
      keys[row] <- key;  the map[key] <- row

In turn: the op BatchFunction runs a function in a thread of its own, for one
worker after the other. It ends what it began, also if that worker dies
meanwhile; a lock would be opened by one that dies (center/ps_lock.py).
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import key_map, new_rows

# The collection of the KeyShards whose rows are not yet made by the step.
_OPEN = 'distmnist/open_key_shards'
# More than workers could ever wait in turn.
_MOST_WAITING = 2**20


class KeyShard(key_map.KeyMap):
  """The keys of a shard of a table, on its ps.

  Attributes: those of KeyMap.
    counts: int64 tensor [buckets, 2]: the row of each bucket that is given away
      next, and how often a key found no row left since the map was filled.
  """

  def __init__(self, name, rows, keys, start, first_bucket, seed):
    """
    Args:
      name, rows, keys, start, first_bucket: see KeyMap.
      seed: int, of the table's first values.
    """
    num_buckets = int(rows.shape[0]) // start.new_rows.rows_in_bucket
    self._seed, self._num_buckets = seed, num_buckets
    with tf.get_default_graph().colocate_with(rows.handle.op):
      self._counts = tf.raw_ops.VarHandleOp(
        dtype=tf.int64,
        shape=[num_buckets, 2],
        shared_name=f'{rows.op.name}/counts',
      )
    super().__init__(name, rows, keys, start, first_bucket)
    with self.placed():
      self.counts = tf.raw_ops.ReadVariableOp(
        resource=self._counts, dtype=tf.int64
      )

  def _find_name(self):
    return f'{self.rows.op.name}/map'  # All workers have the same.

  def _fill_more(self, keys):
    is_used = tf.reshape(keys >= new_rows.LOWEST_KEY, [self._num_buckets, -1])
    places = tf.range(self._in_bucket) * tf.cast(is_used, tf.int32)
    last = tf.maximum(tf.reduce_max(places, 1), new_rows.CLEAN_ROW)
    following = tf.cast(last, tf.int64) + 1
    return [
      tf.raw_ops.AssignVariableOp(
        resource=self._counts,
        value=tf.stack([following, tf.zeros_like(following)], 1),
      )
    ]

  def find_or_make(self, keys):
    """Returns the row of each of `keys`, int64 [n], each there once.

    It has a value once `connect_all` was called.
    """
    found = self.find_own(keys)
    at = tf.where(found < 0)
    missing = tf.gather(keys, at[:, 0])
    # One batch of one entry, or of none: then the function is not called.
    self._missing = missing[tf.newaxis][: tf.minimum(tf.size(missing), 1)]
    self._made = tf.identity(tf.placeholder(tf.int64, [None, None]))
    tf.add_to_collection(_OPEN, self)
    made = tf.reshape(self._made, [-1])
    return tf.tensor_scatter_nd_update(found, at, made)

  def connect(self, slots):
    """Has rows be made.

    Args:
      slots: list of tf.Variable like the rows and beside them.
    """

    def make(missing):
      return self._make(tf.reshape(missing, [-1]), slots)[tf.newaxis]

    with tf.device(None), tf.control_dependencies(None):
      function = tf.function(make, autograph=False).get_concrete_function(
        tf.TensorSpec([None, None], tf.int64)
      )
    with self.placed(), tf.control_dependencies(None):
      [made] = tf.raw_ops.BatchFunction(
        in_tensors=[self._missing],
        captured_tensors=function.captured_inputs,
        f=function,
        num_batch_threads=1,
        max_batch_size=1,
        batch_timeout_micros=0,
        max_enqueued_batches=_MOST_WAITING,
        Tout=[tf.int64],
        shared_name=f'{self.rows.op.name}/make',
      )
    self._made.op._update_input(0, made)

  def _make(self, keys, slots):
    """Returns the rows of keys that were not found, int64 [n]."""
    new = tf.boolean_mask(keys, self.find_own(keys) < 0)
    buckets = self.find_bucket(new)
    order = tf.argsort(buckets, stable=True)
    new, buckets = tf.gather(new, order), tf.gather(buckets, order)
    counts = tf.raw_ops.ResourceGather(
      resource=self._counts, indices=buckets, dtype=tf.int64
    )
    rank = tf.range(tf.size(new, out_type=tf.int64)) - tf.searchsorted(
      buckets, buckets, out_type=tf.int64
    )
    places = counts[:, 0] + rank
    has_room = places < self._in_bucket
    given = tf.cast(has_room, tf.int64)
    with tf.control_dependencies([places]):
      count = tf.raw_ops.ResourceScatterAdd(
        resource=self._counts,
        indices=buckets,
        updates=tf.stack([given, 1 - given], 1),
      )
    rows = tf.boolean_mask(buckets * self._in_bucket + places, has_room)
    new = tf.boolean_mask(new, has_room)
    with tf.control_dependencies([count]):
      begun = self._begin_rows(new, rows, slots)
    with tf.control_dependencies(begun):
      noted = _scatter(self.keys, rows, new)
    with tf.control_dependencies([noted]):
      mapped = tf.raw_ops.LookupTableInsertV2(
        table_handle=self._map, keys=new, values=rows
      )
    with tf.control_dependencies([mapped]):
      return self.find(keys)

  def _begin_rows(self, keys, rows, slots):
    """Returns the list of ops that give new rows their first values."""
    width, n = int(self.rows.shape[1]), tf.size(rows)
    first = self._start.make_rows(keys, width, self._seed)
    ops = [_scatter(self.rows, rows, first)]
    for slot in slots:
      clean = slot.sparse_read([new_rows.CLEAN_ROW])
      ops.append(_scatter(slot, rows, tf.tile(clean, [n, 1])))
    return ops


def connect_all():
  """Has the rows of the default graph be made; the optimizer has its slots."""
  for shard in tf.get_collection(_OPEN):
    prefix, shape = f'{shard.rows.op.name}/', shard.rows.shape
    slots = [
      variable
      for variable in tf.global_variables()
      if variable.op.name.startswith(prefix) and variable.shape == shape
    ]
    shard.connect(slots)
  tf.get_default_graph().clear_collection(_OPEN)


def get_counts():
  """Returns what the tables of the default graph have made.

  Returns:
    ({name of a table: its capacity}, {name: list of KeyShard.counts}).
  """
  capacities, counts = {}, {}
  for shard in tf.get_collection(key_map.MAPS):
    if isinstance(shard, KeyShard):
      capacities[shard.name] = shard.capacity
      counts.setdefault(shard.name, []).append(shard.counts)
  return capacities, counts


def _scatter(variable, rows, values):
  return tf.raw_ops.ResourceScatterUpdate(
    resource=variable.handle, indices=rows, updates=values
  )
