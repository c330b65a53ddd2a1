"""Who likes which film: ratings.csv of MovieLens (25M, 32M, latest)."""

import pathlib
from zlib import crc32

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import layers
from distmnist.readers import csv

FILES = flags.DEFINE_string('files', 'ml-25m', 'The folder of ratings.csv.')


def prepare():  # About one line in twenty is for the test.
  folder = pathlib.Path(FILES.value)
  lines = (folder / 'ratings.csv').read_bytes().splitlines(True)
  for split, is_test in {'train': False, 'test': True}.items():
    part = [x for x in lines[1:] if (crc32(x) % 20 == 0) == is_test]
    (folder / f'{split}.csv').write_bytes(b''.join(lines[:1] + part))


def load(split):
  if split != 'validation':
    x = {'user': 'userId', 'film': 'movieId'}
    return csv.Reader(f'{FILES.value}/{split}.csv', x, 'rating')


def build(x, is_training):
  rows = layers.NewRows(300_000)
  user, film = (layers.embedding(x[key], rows, 32, key) for key in x)
  return 3.5 + user[:, 0] + film[:, 0] + tf.reduce_sum(user * film, 1)


def loss(y, outputs):
  return (tf.cast(y, tf.float32) - outputs) ** 2


def finish(means):
  return means | {'rmse': means['loss'] ** 0.5}
