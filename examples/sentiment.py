"""From any number of words to a yes or no: an embedding and a GRU, in Keras.

  python -m distmnist.launch --num_ps=2 --num_workers=2 -- \\
      --problem=examples/sentiment.py --optimizer=adam --epochs=5
"""

import keras
import numpy as np

NUM_WORDS, LENGTH = 200, 12
best = '+auc'
loss = keras.losses.BinaryCrossentropy(from_logits=True)
metrics = [
  keras.metrics.BinaryAccuracy('accuracy', threshold=0),  # Of a logit.
  keras.metrics.AUC(from_logits=True, name='auc'),
]


def load(split):
  """A text is good if more of its words are even numbers than odd ones."""
  seed = ['train', 'validation', 'test'].index(split)
  n = [3000, 300, 300][seed]
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, LENGTH + 1, [n, 1])
  words = rng.integers(1, NUM_WORDS, [n, LENGTH])
  words *= np.arange(LENGTH) < lengths  # 0 is no word.
  return words, np.where(words > 0, 1 - 2 * (words % 2), 0).sum(1) > 0


def make_model():
  return keras.Sequential(
    [
      keras.layers.Embedding(NUM_WORDS, 16, mask_zero=True),
      keras.layers.GRU(16),
      keras.layers.Dense(1),
    ]
  )
