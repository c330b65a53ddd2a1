"""A problem for tests: seven nets of Keras; --net picks one.

The data are drawn from a seed; an epoch has --examples of them.
"""

import keras
import numpy as np
from absl import flags

_NET = flags.DEFINE_enum(
  'net',
  'mlp',
  ['mlp', 'cnn', 'residual', 'text', 'masked_text', 'transformer', 'towers'],
  'Which net.',
)
_EXAMPLES = flags.DEFINE_integer('examples', 40, 'Examples in an epoch.')
_DROPS = flags.DEFINE_bool('drops', True, 'Whether dropout drops units.')

_WORDS, _LENGTH = 30, 8
layers = keras.layers
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metrics = ['accuracy']


def load(split):
  rng = np.random.default_rng(['train', 'validation', 'test'].index(split))
  n = _EXAMPLES.value
  y = rng.integers(0, 4, n)
  if _NET.value in ('text', 'masked_text', 'transformer'):
    return rng.integers(0, _WORDS, [n, _LENGTH]), y
  if _NET.value == 'towers':
    names = 'user', 'item'
    return {x: rng.normal(size=[n, 6]).astype('float32') for x in names}, y
  return rng.normal(size=[n, 8, 8, 1]).astype('float32'), y


def make_model():
  return _MAKERS[_NET.value]()


def _make_mlp():
  return keras.Sequential(
    [
      layers.Input([8, 8, 1]),
      layers.Flatten(),
      layers.Dense(16, activation='relu', kernel_regularizer='l2'),
      layers.Dropout(0.5 * _DROPS.value),
      layers.Dense(4),
    ]
  )


def _make_cnn():
  return keras.Sequential(
    [
      layers.Conv2D(4, 3, activation='relu'),
      layers.BatchNormalization(),
      layers.Conv2D(4, 3),
      layers.BatchNormalization(momentum=0.9),
      layers.Flatten(),
      layers.Dense(4),
    ]
  )


def _make_residual():
  x = images = layers.Input([8, 8, 1])
  x = layers.Conv2D(4, 3, padding='same')(x)
  for _ in range(3):
    y = layers.Conv2D(4, 3, padding='same', use_bias=False)(x)
    y = layers.BatchNormalization()(y)
    x = layers.ReLU()(layers.add([x, y]))
  x = layers.GlobalAveragePooling2D()(x)
  return keras.Model(images, layers.Dense(4)(x))


def _make_text():
  return keras.Sequential(
    [
      layers.Embedding(_WORDS, 8),
      layers.LSTM(8, return_sequences=True),
      layers.Bidirectional(layers.GRU(4)),
      layers.Dense(4),
    ]
  )


def _make_masked_text():
  return keras.Sequential(
    [
      layers.Embedding(_WORDS, 8, mask_zero=True),
      layers.LSTM(8, dropout=0.2, recurrent_dropout=0.2),
      layers.BatchNormalization(momentum=0.9),
      layers.Dense(4),
    ]
  )


def _make_transformer():
  words = layers.Input([_LENGTH], dtype='int32')
  x = layers.Embedding(_WORDS, 8)(words)
  attention = layers.MultiHeadAttention(2, 4, dropout=0.1 * _DROPS.value)
  x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
  x = layers.LayerNormalization()(x + layers.Dense(8, activation='gelu')(x))
  return keras.Model(words, layers.Dense(4)(layers.Flatten()(x)))


@keras.saving.register_keras_serializable('keras_nets')
class TwoTowers(keras.Model):
  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self._user, self._item = layers.Dense(8), layers.Dense(8)
    self._last = layers.Dense(4)

  def call(self, x):
    return self._last(self._user(x['user']) * self._item(x['item']))


_MAKERS = {
  'mlp': _make_mlp,
  'cnn': _make_cnn,
  'residual': _make_residual,
  'text': _make_text,
  'masked_text': _make_masked_text,
  'transformer': _make_transformer,
  'towers': TwoTowers,
}
