"""Words of any number to a yes or no: an embedding, and a loop over the words.

  python -m distmnist.launch --num_ps=2 --num_workers=2 -- \\
      --problem=examples/sentiment.py --optimizer=adam --epochs=5
"""

import numpy as np
import tensorflow.compat.v1 as tf

NUM_WORDS, LENGTH, WIDTH = 200, 12, 16
best = '+accuracy'


def load(split):
  """Texts are good if more of their words are even numbers than odd ones."""
  seed, n = {'train': (1, 3000), 'validation': (2, 300), 'test': (3, 300)}[
    split
  ]
  rng = np.random.default_rng(seed)
  words = rng.integers(1, NUM_WORDS, [n, LENGTH])
  lengths = rng.integers(1, LENGTH + 1, n)
  is_there = np.arange(LENGTH) < lengths[:, None]
  score = np.where(is_there, 1 - 2 * (words % 2), 0).sum(1)
  return {'words': words * is_there, 'lengths': lengths}, score > 0


def build(x, is_training):
  table = tf.get_variable('words', [NUM_WORDS, WIDTH])
  weights = tf.get_variable('weights', [2 * WIDTH, WIDTH])
  words = tf.nn.embedding_lookup(table, x['words'])

  def read_word(state, word_and_place):
    word, place = word_and_place
    new = tf.tanh(tf.concat([state, word], 1) @ weights)
    return tf.where(place < x['lengths'], new, state)

  by_word = tf.transpose(words, [1, 0, 2])
  places = tf.range(LENGTH, dtype=tf.int64)
  states = tf.scan(read_word, (by_word, places), tf.zeros_like(words[:, 0]))
  return tf.squeeze(states[-1] @ tf.get_variable('last', [WIDTH, 1]), 1)


def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(
    labels=tf.cast(y, tf.float32), logits=outputs
  )


def metrics(y, outputs):
  return {'accuracy': tf.equal(y, outputs > 0)}
