"""The next letter of a text: a small Transformer, in Keras.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- \\
      --problem=examples/transformer.py --optimizer=adam --epochs=10
"""

import keras
import numpy as np
from keras import layers

LETTERS, LENGTH, WIDTH = 12, 16, 32
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metrics = ['accuracy']


def load(split):
  """Each letter is the sum of the two before it, with a slip now and then."""
  seed = ['train', 'validation', 'test'].index(split)
  n = [2000, 200, 200][seed]
  rng = np.random.default_rng(seed)
  text = rng.integers(0, LETTERS, [n, LENGTH + 1])
  for i in range(2, LENGTH + 1):
    told = (text[:, i - 1] + text[:, i - 2]) % LETTERS
    text[:, i] = np.where(rng.random(n) < 0.05, text[:, i], told)
  return text[:, :-1], text[:, 1:]


def make_model():
  letters = layers.Input([LENGTH], dtype='int32')
  places = keras.ops.arange(LENGTH)
  x = layers.Embedding(LETTERS, WIDTH)(letters)
  x = x + layers.Embedding(LENGTH, WIDTH)(places)
  for _ in range(2):
    attention = layers.MultiHeadAttention(4, WIDTH // 4, dropout=0.1)
    x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
    y = layers.Dense(2 * WIDTH, activation='gelu')(x)
    x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(y))
  return keras.Model(letters, layers.Dense(LETTERS)(x))
