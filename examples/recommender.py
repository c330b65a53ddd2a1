"""Who likes what: two towers with embeddings, in Keras.

  python -m distmnist.launch --num_ps=2 --num_workers=2 -- \\
      --problem=examples/recommender.py --optimizer=adam --epochs=10
"""

import keras
import numpy as np
from keras import layers

USERS, ITEMS, WIDTH = 400, 300, 16
best = '-rmse'
loss = 'mse'


def load(split):
  """Ratings are how well the hidden tastes of a user and an item agree."""
  tastes = np.random.default_rng(0).normal(size=[USERS + ITEMS, 3])
  seed = ['train', 'validation', 'test'].index(split)
  n = [8000, 800, 800][seed]
  rng = np.random.default_rng(seed)
  user, item = rng.integers(0, USERS, n), rng.integers(0, ITEMS, n)
  rating = (tastes[user] * tastes[USERS + item]).sum(1)
  return {'user': user, 'item': item}, rating


def make_model():
  names = 'user', 'item'
  inputs = {n: layers.Input([], dtype='int32', name=n) for n in names}
  user = layers.Embedding(USERS, WIDTH)(inputs['user'])
  item = layers.Embedding(ITEMS, WIDTH)(inputs['item'])
  return keras.Model(inputs, layers.Dot(axes=1)([user, item]))


def finish(means):
  return means | {'rmse': means['loss'] ** 0.5}
