"""ResNet-20 with batch norm (He et al. 2015, arXiv 1512.03385), in Keras.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- \\
      --problem=examples/resnet20.py --optimizer=momentum --epochs=10
"""

import keras
import numpy as np
from absl import flags
from keras import layers

WIDTH = flags.DEFINE_integer('width', 16, 'Channels of the first layers.')
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metrics = ['accuracy']


def load(split):  # Stripes, in place of keras.datasets.cifar10.
  rng = np.random.default_rng(['train', 'validation', 'test'].index(split))
  y = rng.integers(0, 10, 600)
  waves = np.sin(np.arange(32) * (y[:, None] + 1) / 5)[:, None, :, None]
  return waves + rng.normal(0, 0.5, [600, 32, 32, 3]), y


def add_conv(x, channels, strides=1):
  x = layers.Conv2D(channels, 3, strides, 'same', use_bias=False)(x)
  return layers.BatchNormalization(momentum=0.9)(x)


def make_model():
  images = layers.Input([32, 32, 3])
  x = layers.ReLU()(add_conv(images, WIDTH.value))
  for block in range(9):
    strides = 2 if block in (3, 6) else 1
    channels = WIDTH.value << block // 3
    y = add_conv(layers.ReLU()(add_conv(x, channels, strides)), channels)
    x = x if strides == 1 else layers.Conv2D(channels, 1, strides)(x)
    x = layers.ReLU()(x + y)
  x = layers.GlobalAveragePooling2D()(x)
  return keras.Model(images, layers.Dense(10, kernel_regularizer='l2')(x))
