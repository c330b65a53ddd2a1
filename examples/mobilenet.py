"""MobileNetV2 of keras.applications, from pretrained weights if wanted.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- \\
      --problem=examples/mobilenet.py --weights=imagenet --optimizer=adam
"""

import keras
import numpy as np
from absl import flags

WEIGHTS = flags.DEFINE_string('weights', None, 'imagenet, or a file of Keras.')
SIDE, CLASSES = 32, 4
loss = 'sparse_categorical_crossentropy'
metrics = ['accuracy']


def load(split):
  """Images of a square, somewhere, whose colour is the class."""
  seed = ['train', 'validation', 'test'].index(split)
  n = [400, 100, 100][seed]
  rng = np.random.default_rng(seed)
  x = rng.normal(0, 0.3, [n, SIDE, SIDE, 3])
  y = rng.integers(0, CLASSES, n)
  colours = np.array([[1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, 1]])
  for image, label in zip(x, y, strict=True):
    row, column = rng.integers(0, SIDE - 12, 2)
    image[row : row + 12, column : column + 12] = colours[label]
  return x, y


def make_model():
  shape = SIDE, SIDE, 3
  base = keras.applications.MobileNetV2(
    shape, alpha=0.35, include_top=False, weights=WEIGHTS.value, pooling='avg'
  )
  last = keras.layers.Dense(CLASSES, activation='softmax')
  return keras.Sequential([base, last])
