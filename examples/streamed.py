"""A curve learnt from TFRecord files; memory holds only a few batches.

python -m distmnist.train --problem=examples/streamed.py --download_only
python -m distmnist.launch -- --problem=examples/streamed.py --epochs=9
"""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.readers import tfrecord

FILES = flags.DEFINE_string('files', 'curve', 'The folder of the files.')
loss = 'mse'


def prepare():
  tf.io.gfile.makedirs(FILES.value)
  for part, name in enumerate(['test', 'train-1', 'train-2', 'train-3']):
    rows = np.random.default_rng(part).uniform(-2, 2, [1000, 2])
    with tf.io.TFRecordWriter(f'{FILES.value}/{name}.tfrecord') as writer:
      for row in rows.astype(np.float32):
        writer.write(row.tobytes())


def load(split):
  if split != 'validation':
    return tfrecord.Reader(f'{FILES.value}/{split}*', parse)


def parse(records):
  x = tf.reshape(tf.io.decode_raw(records, tf.float32), [-1, 2])
  return x, tf.sin(x[:, 0]) * x[:, 1]


def make_model():
  sizes = {32: 'elu', 31: 'elu', 1: None}
  return keras.Sequential([keras.layers.Dense(*d) for d in sizes.items()])
