"""The rows of a step: pulled by the ids of its batch, pushed as gradients.

  worker     all ids of the step, each once and in order -> a ps: its ids
  ps         their rows -> worker, which computes with them
  worker     one gradient a row -> a ps, which has kept the ids

That is one message each way for the pull and one for the push, for all tables
of one width together; nothing depends on how large the tables are. A key stands
for a row of any of these tables: they are numbered ps by ps, table by table.
In order they make ranges, one for each shard, so that what goes to a shard and
comes from it is cut out and put together by position alone. The accumulators of
sync_sgd need them in order, too: they merge sorted lists, and of lists that are
not they keep rows twice without a word.
"""

import itertools

import tensorflow.compat.v1 as tf


class RowExchange:
  """The tables of one width, and their rows in this step.

  Attributes:
    view: tensor [n, width] on the worker, the rows that were pulled: the loss
      is differentiated by it. Its gradient is dense, one row a key.
    num_ids, num_keys: int64 scalar tensors on the worker, the ids of the step
      and how many different ones they are.
  """

  def __init__(self, tables, wire, cpu_device, compute_device):
    """
    Args:
      tables: list of sparse_table.Table.
      wire: transport.Wire.
      cpu_device, compute_device: str, those of the worker.
    """
    self._num_tables = len(tables)
    self._numbering = _Numbering(tables)
    self._places = self._numbering.places
    self._wire = wire
    self._cpu, self._compute = cpu_device, compute_device
    self.width, self.dtype = tables[0].width, tables[0].dtype
    self._kept = []

  def connect(self):
    """Pulls the rows of all lookups, and gives them their values."""
    lookups = self._numbering.lookups
    with tf.name_scope('rows'), tf.device(self._cpu):
      keys, places = self._numbering.find_keys()
      self._num_keys_of_shards = tf.split(
        _count_between(keys, self._numbering.bounds),
        [len(shards) for _, shards in self._places],
      )
      self._num_keys_of_ps = [
        tf.reduce_sum(numbers) for numbers in self._num_keys_of_shards
      ]
      keys_of_ps = tf.split(keys, tf.stack(self._num_keys_of_ps))
      if len(self._places) == 1:
        keys_of_ps = [keys]
      self.num_ids = tf.size(places, out_type=tf.int64)
      self.num_keys = tf.size(keys, out_type=tf.int64)
      parts = [
        self._pull(device, shards, numbers, part)
        for (device, shards), numbers, part in zip(
          self._places, self._num_keys_of_shards, keys_of_ps, strict=True
        )
      ]
      with tf.device(self._compute):
        self.view = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
        # The gradient by what is reshaped is dense: a key's is summed up here,
        # before it is clipped and sent.
        rows = tf.reshape(self.view, [-1, self.width])
        given = [tf.gather(rows, places)]
        if len(lookups) > 1:
          sizes = [tf.size(positions) for positions, _ in lookups]
          given = tf.split(given[0], tf.stack(sizes))
    for (_, wanted), value in zip(lookups, given, strict=True):
      with tf.device(self._compute):
        value.set_shape(wanted.shape)
      wanted.op._update_input(0, value)

  def _pull(self, device, shards, numbers, keys):
    """Returns the rows of a ps on the worker, [n, width]."""
    header = len(shards) if len(shards) > 1 else 0
    if header:
      keys = tf.concat([numbers, keys], 0)
    keys = self._wire.push(keys, device)
    kept = []
    with tf.device(device):
      # A copy of this step begins where the step before it has ended, and what
      # it reads must wait for that: see graph_copy.Copier.
      begin = tf.no_op('begin')
      parts = [keys]
      if header:
        parts = tf.split(keys[header:], keys[:header], num=header)
      with tf.control_dependencies([begin]):
        for shard, part in zip(shards, parts, strict=True):
          first = self._numbering.first[shard.op.name]
          rows = part - first if first else part
          kept.append((shard, rows, shard.sparse_read(rows)))
      rows = [pulled for _, _, pulled in kept]
      rows = rows[0] if len(rows) == 1 else tf.concat(rows, 0)
    self._kept.append(kept)
    return self._wire.pull(rows, device)

  def push(self, gradient):
    """Pushes the gradient by `view`.

    Returns:
      The list of (tf.IndexedSlices, shard), on the shard's ps; rows are in
      order and none is there twice.
    """
    pairs = []
    parts = [gradient]
    if len(self._places) > 1:
      with tf.device(self._compute):
        parts = tf.split(gradient, tf.stack(self._num_keys_of_ps))
    for (device, _), kept, part in zip(
      self._places, self._kept, parts, strict=True
    ):
      part.set_shape([None, self.width])
      arrived = self._wire.push(part, device)
      with tf.device(device):
        values = [arrived]
        if len(kept) > 1:
          sizes = tf.stack([tf.size(rows) for _, rows, _ in kept])
          values = tf.split(arrived, sizes, num=len(kept))
        for (shard, rows, _), value in zip(kept, values, strict=True):
          value.set_shape([None, self.width])
          shape = tf.constant(shard.shape.as_list(), tf.int64)
          pairs.append((tf.IndexedSlices(value, rows, shape), shard))
    return pairs

  @property
  def pulled(self):
    """The rows as they were pulled, a list of tensors, as of `push`."""
    return [rows for kept in self._kept for _, _, rows in kept]

  def count_bytes_pulled(self):
    """Returns the bytes of this step's rows on the wire, int64 scalar."""
    return self.num_keys * self.width * self._wire.size_of(self.dtype)

  def count_bytes_pushed(self):
    """Returns those of its keys and of their gradients, int64 scalar."""
    num_numbers = sum(len(s) for _, s in self._places if len(s) > 1)
    return self.count_bytes_pulled() + (self.num_keys + num_numbers) * 8

  def count_numbers(self, num_ps):
    """Returns how many numbers (int) go before the keys to so many ps.

    They are for ps that have a shard of several tables, as all of them have.
    """
    return self._num_tables * num_ps if self._num_tables > 1 else 0


class _Numbering:
  """The keys of the rows of some tables: ps by ps, on each table by table.

  Attributes:
    places: list of (device, list of shards), one for each ps.
    first: {name of a shard: int}, its first key.
    bounds: list of int, the end of the keys of each shard, in their order.
  """

  def __init__(self, tables):
    self._tables = tables
    shards = [shard for table in tables for shard in table.shards]
    devices = list(dict.fromkeys(shard.device for shard in shards))
    self.places = [
      (device, [shard for shard in shards if shard.device == device])
      for device in devices
    ]
    in_order = [shard for _, group in self.places for shard in group]
    sizes = [int(shard.shape[0]) for shard in in_order]
    self.bounds = list(itertools.accumulate(sizes))
    self.first = {
      shard.op.name: end - size
      for shard, end, size in zip(in_order, self.bounds, sizes, strict=True)
    }

  @property
  def lookups(self):
    """The lookups of all tables, as of sparse_table.Table."""
    return [pair for table in self._tables for pair in table.lookups]

  def find_keys(self):
    """Returns (keys, places): int64 [n] in order, int32 [ids] of each id."""
    found = []
    for table in self._tables:
      begins = [0, *itertools.accumulate(int(s.shape[0]) for s in table.shards)]
      moves = [
        self.first[shard.op.name] - begin
        for shard, begin in zip(table.shards, begins, strict=False)
      ]
      for positions, _ in table.lookups:
        move = moves[0]
        if len(set(moves)) > 1:
          owners = tf.searchsorted(
            tf.constant(begins[1:-1], tf.int64), positions, 'right'
          )
          move = tf.gather(tf.constant(moves, tf.int64), owners)
        found.append(positions + move)
    keys, places = tf.unique(
      found[0] if len(found) == 1 else tf.concat(found, 0)
    )
    order = tf.argsort(keys)
    return (
      tf.gather(keys, order),
      tf.gather(tf.math.invert_permutation(order), places),
    )


def _count_between(keys, bounds):
  """Returns how many of `keys` are in each range, int64 [bounds].

  Args:
    keys: int64 [n], in order.
    bounds: list of int, the end of each range; the first one begins at 0.
  """
  ends = tf.searchsorted(keys, tf.constant(bounds, tf.int64), out_type=tf.int64)
  return ends - tf.concat([[tf.constant(0, tf.int64)], ends[:-1]], 0)
