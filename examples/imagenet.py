"""A net of keras.applications on ImageNet's TFRecord files, or on similar ones.

  python -m distmnist.launch --num_ps=2 --num_workers=4 -- \\
      --flagfile=configs/imagenet_resnet50.flags --records=/data/imagenet
"""

import keras
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.readers import tfrecord

NET = flags.DEFINE_string('net', 'ResNet50', 'A class of keras.applications.')
RECORDS = flags.DEFINE_string('records', '.', 'The folder of the files.')
SIDE = flags.DEFINE_integer('side', 224, 'Pixels of an image each way.')
CLASSES = flags.DEFINE_integer('classes', 1000, 'Labels are 1 to so many.')
SMOOTHING = flags.DEFINE_float('smoothing', 0.0, 'Label smoothing, 0 to 1.')
metrics, best = ['accuracy'], '+accuracy'


def load(split):
  part = {'train': 'train', 'test': 'validation'}.get(split)
  return part and tfrecord.Reader(f'{RECORDS.value}/{part}-*', parse)


def parse(records):
  types = {'image/encoded': tf.string, 'image/class/label': tf.int64}
  features = {k: tf.io.FixedLenFeature([], t) for k, t in types.items()}
  jpegs, labels = map(tf.io.parse_example(records, features).get, types)

  def decode(jpeg):
    return tf.image.resize(tf.io.decode_jpeg(jpeg, 3), [SIDE.value] * 2)

  return tf.cast(tf.map_fn(decode, jpegs, tf.float32), tf.uint8), labels - 1


def loss(y, logits):
  k, e = CLASSES.value, SMOOTHING.value
  targets = tf.one_hot(y, k, on_value=1 - e + e / k, off_value=e / k)
  return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def make_model():
  make, shape = getattr(keras.applications, NET.value), [SIDE.value] * 2 + [3]
  net = make(True, None, None, shape, None, CLASSES.value, None)
  return keras.Sequential([keras.layers.Rescaling(1 / 127.5, -1), net])
