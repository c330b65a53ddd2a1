"""Who clicks on which ad: from a CSV file to a ranking, with sparse tables."""

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import layers
from distmnist.readers import csv

FILES = flags.DEFINE_string('files', 'ads', 'The folder of the CSV files.')
ROWS, WIDTH = layers.NewRows(capacity=1_000_000), 8


def prepare():  # Not needed for files of your own.
  tf.io.gfile.makedirs(FILES.value)
  for seed, (split, n) in enumerate({'train': 20000, 'test': 2000}.items()):
    rng = np.random.default_rng(seed)
    users, ads = rng.zipf(1.5, [2, n]) % 50
    odds = np.sin(users) * np.cos(ads) * 4 + rng.logistic(size=n)
    with open(f'{FILES.value}/{split}.csv', 'w') as file:
      file.write('user,ad,clicked\n')
      for user, ad, z in zip(users, ads, odds, strict=True):
        file.write(f'user-{user},ad-{ad},{int(z > 0)}\n')


def load(split):
  if split != 'validation':
    x = {'user': 'user', 'ad': 'ad'}
    return csv.Reader(f'{FILES.value}/{split}.csv', x, 'clicked')


def build(x, is_training):
  rows = [layers.embedding(x[k], ROWS, WIDTH, k) for k in ('user', 'ad')]
  return tf.reduce_sum(rows[0] * rows[1], 1)


def loss(y, outputs):
  y = tf.cast(y, tf.float32)
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
