"""28 x 28 images from memory, from files, or from a reader; for streams.py."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import registry
from distmnist.common.names import MODELS
from distmnist.datasets import synthetic
from distmnist.readers import tfrecord

NET = flags.DEFINE_string('net', 'mlp', 'The net.')
FILES = flags.DEFINE_string('files', '.', 'The folder of the files.')
FROM = flags.DEFINE_enum(
  'from', 'memory', ['memory', 'reader', 'tfrecord'], 'Whence.'
)
NUM_FILES = 11
best = '+accuracy'


class Reader:
  def __init__(self, x, y):
    self._x, self._y = x, y
    self.num_examples = len(x)

  def read(self, indices):
    return self._x[indices], self._y[indices]


def prepare():
  if FROM.value != 'tfrecord' or os.listdir(FILES.value):
    return
  x, y = synthetic.load('', 'train')
  for number in range(NUM_FILES):
    path = f'{FILES.value}/train-{number:02d}'
    with tf.io.TFRecordWriter(path) as writer:
      for image, label in zip(
        x[number::NUM_FILES], y[number::NUM_FILES], strict=True
      ):
        writer.write(make_record(image.tobytes(), int(label)))


def make_record(image, label):
  feature = {
    'image': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
    'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
  }
  example = tf.train.Example(features=tf.train.Features(feature=feature))
  return example.SerializeToString()


def load(split):
  if split == 'validation':
    return None
  if split == 'train' and FROM.value == 'tfrecord':
    return tfrecord.Reader(f'{FILES.value}/train-*', parse)
  x, y = synthetic.load('', split)
  x, y = x.reshape(-1, 28, 28, 1), y.astype(np.int64)
  if split == 'train' and FROM.value == 'reader':
    return Reader(x, y)
  return x, y


def parse(records):
  types = {'image': tf.string, 'label': tf.int64}
  features = {k: tf.io.FixedLenFeature([], t) for k, t in types.items()}
  found = tf.io.parse_example(records, features)
  pixels = tf.io.decode_raw(found['image'], tf.uint8)
  return tf.reshape(pixels, [-1, 28, 28, 1]), found['label']


def preprocess(x, y, is_training):
  return tf.cast(x, tf.float32) / 255, y


def build(x, is_training):
  return registry.load(MODELS, NET.value).make(10)(x, is_training)


def loss(y, outputs):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=outputs
  )


def metrics(y, outputs):
  return {'accuracy': tf.cast(tf.equal(tf.argmax(outputs, 1), y), tf.float32)}
