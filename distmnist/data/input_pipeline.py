"""Input inside the graph: a worker is told which examples to take.

All of them stay in local variables of the worker, filled once by py_funcs, in
the type in which they were loaded: none is fed in the training loop, and no
constant of 47 MB is in the GraphDef. Or a reader reads them as they are needed,
and a py_func takes what it has read (streamed.py). What is fed is a row of
numbers a batch, the indices of its examples (training/batch_source.py). Through
tf.data even these cost a small net a tenth of its time, with its threads.
"""

import functools

import tensorflow.compat.v1 as tf

from distmnist.data import fed_rows, seeds, streamed


def build_batches(split, preprocess, batch_size, device, warmup=None):
  """Builds the batch of a step; it is fed through fed_rows.FedRows.

  Args:
    split: split.Split or streamed.Streamed.
    preprocess: callable(x, y, is_training) -> (x, y), of one batch.
    batch_size: int.
    device: str, this worker's CPU.
    warmup: graph_warmup.Warmup, in which nothing is read, or None.

  Returns:
    (x, y): nests of tensors [batch_size, ...], as `preprocess` gives them.
  """
  with tf.name_scope('input'), tf.device(device):
    is_streamed = isinstance(split, streamed.Streamed)
    resident = [] if is_streamed else _build_resident(split.arrays())
    row = fed_rows.build(batch_size).row
    if warmup:
      row = warmup.hold_back(row)
    seeds.set_place(row[0])
    if is_streamed:
      chosen = streamed.build_batch(split, row)
    else:
      chosen = split.pack(tf.gather(array, row[1:]) for array in resident)
    return preprocess(*chosen, is_training=True)


def build_chunks(split, preprocess, chunk_size):
  """Builds one pass over a split in order, in chunks; the last may be smaller.

  Args:
    split: split.Split or streamed.Streamed.
    preprocess: as in `build_batches`.
    chunk_size: int.

  Returns:
    (x, y, initializer): nests of tensors [n, ...], and the op that starts the
    pass; at its end tf.errors.OutOfRangeError is raised.
  """
  leaves = split.spec.arrays()

  def generate():
    for start in range(0, split.num_examples, chunk_size):
      yield tuple(split.slice(start, start + chunk_size).arrays())

  with tf.name_scope('chunks'), tf.device('/device:CPU:0'):
    dataset = tf.data.Dataset.from_generator(
      generate,
      tuple(leaf.dtype for leaf in leaves),
      tuple(tf.TensorShape([None, *leaf.shape]) for leaf in leaves),
    )
    iterator = tf.data.make_initializable_iterator(
      dataset.with_options(_make_options())
    )
    chunk = split.pack(iterator.get_next())
    x, y = preprocess(*chunk, is_training=False)
    return x, y, iterator.initializer


def _build_resident(arrays):
  return [
    tf.get_local_variable(
      f'array_{i}',
      initializer=functools.partial(_build_constant_by_call, array),
      use_resource=True,
    )
    for i, array in enumerate(arrays)
  ]


def _build_constant_by_call(array):
  tensor = tf.py_func(lambda: array, [], tf.as_dtype(array.dtype))
  tensor.set_shape(array.shape)
  return tensor


def _make_options():
  """Options of a data set that leaves when it is told to.

  Nothing here is worth tuning, and the tuner's thread sleeps for up to a
  minute at a time, for which the close of a session waits.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return options
