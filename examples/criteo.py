"""Who clicks: Criteo's logs, day_0 to day_23, as unpacked."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import layers
from distmnist.problems import clicks
from distmnist.rankers import dlrm
from distmnist.readers import csv

FILES = flags.DEFINE_string('files', 'criteo', 'The folder of the files.')
LAST = flags.DEFINE_integer('last_day', 23, 'The day of the test.')
ROWS = layers.NewRows(10_000_000, min_sightings=3, unseen_steps=100_000)
NUMBERS = [f'number{i}' for i in range(13)]
CATEGORIES = [f'category{i}' for i in range(26)]
best, finish, serve = clicks.best, clicks.finish, clicks.serve


def load(split):
  if split != 'validation':
    days = [LAST.value] if split == 'test' else range(LAST.value)
    files = [f'{FILES.value}/day_{day}' for day in days]
    x, names = (NUMBERS, CATEGORIES), ['clicked', *NUMBERS, *CATEGORIES]
    return csv.Reader(files, x, 'clicked', 64, '\t', names, missing=-1)


def build(x, is_training):
  numbers, categories = x
  # The same text is another category in another column.
  keys = tf.constant([f'{name} ' for name in CATEGORIES]) + categories
  return dlrm.build(tf.log(tf.cast(numbers, tf.float32) + 4), keys, ROWS, 16)


def loss(y, outputs):
  return clicks.loss({'clicked': tf.cast(y, tf.float32)}, outputs)


def metrics(y, outputs):
  return {'auc': clicks.count_auc(tf.sigmoid(outputs), tf.cast(y, tf.float32))}
