"""Least squares whose variables are in groups, and their optimizers in NumPy.

y = x (wide + head + deep + body) + biases + the row of a table, half the
squared error, a batch a worker and step. Nothing of the optimizers here is the
package's.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers

STEPS, BATCH, IN, OUT, ROWS = 6, 4, 5, 3, 8
RATE, TABLE_RATE, CLIP_NORM, DECAY = 0.1, 0.2, 1.5, 0.05
FLAGS = (
  '--optimizer=momentum',
  f'--learning_rate={RATE}',
  f'--clip_norm={CLIP_NORM}',
  f'--weight_decay={DECAY}',
)
TABLE_FLAGS = (
  '--table_optimizer=adagrad',
  f'--table_learning_rate={TABLE_RATE}',
)
GROUPS = {
  'wide/.*': {'optimizer': 'ftrl', 'weight_decay': 0},
  'head/weights': {'learning_rate': 3, 'weight_decay': 0.2},
  '(deep|none)/.*': {'optimizer': 'adam', 'learning_rate': 0.25},
}
# ftrl cannot move a worker's copy.
LOCAL_GROUPS = GROUPS | {'wide/.*': {'optimizer': 'adagrad'}}
TABLE = 'table/rows'
_RNG = np.random.default_rng(7)
START = {
  f'{name}/weights': _RNG.normal(size=(IN, OUT)).astype(np.float32)
  for name in ('wide', 'head', 'deep', 'body')
} | {'body/biases': _RNG.normal(size=OUT).astype(np.float32)}


def draw(num_workers):
  """Returns (x, y, ids) of [STEPS, num_workers, BATCH, ...]."""
  rng = np.random.default_rng(num_workers)
  shape = STEPS, num_workers, BATCH
  return (
    rng.normal(size=(*shape, IN)).astype(np.float32),
    rng.normal(size=(*shape, OUT)).astype(np.float32),
    rng.integers(0, ROWS, shape),
  )


def build(x, y, ids=None):
  """Returns the loss; with `ids` there is a table, of zeros at first."""
  outputs = 0
  for name, value in START.items():
    scope, _, last = name.partition('/')
    with tf.variable_scope(scope, reuse=tf.AUTO_REUSE):
      variable = tf.get_variable(last, value.shape, initializer=_start(name))
    outputs += tf.matmul(x, variable) if last == 'weights' else variable
  if ids is not None:
    zeros = tf.zeros_initializer()
    outputs += layers.embedding(ids, ROWS, OUT, 'table', initializer=zeros)
  return tf.reduce_mean(tf.reduce_sum((outputs - y) ** 2, 1)) / 2


def _start(name):
  def initialize(shape, dtype=None, partition_info=None):
    begin = partition_info.var_offset if partition_info else [0] * len(shape)
    index = tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))
    return tf.constant(START[name][index], dtype)

  return initialize


def begin(has_table):
  """Returns {whole name: float64 array}, what all begin with."""
  values = {name: value.astype(float) for name, value in START.items()}
  return values | ({TABLE: np.zeros((ROWS, OUT))} if has_table else {})


def compute_gradients(values, x, y, ids):
  """Returns {whole name: gradient}, clipped by the norm of all of them."""
  weights = sum(v for name, v in values.items() if name.endswith('weights'))
  errors = x @ weights + values['body/biases'] - y
  if TABLE in values:
    errors = errors + values[TABLE][ids]
  errors /= len(x)
  found = {name: x.astype(float).T @ errors for name in START}
  found['body/biases'] = errors.sum(0)
  if TABLE in values:
    found[TABLE] = np.zeros((ROWS, OUT))
    np.add.at(found[TABLE], ids, errors)
  norm = np.sqrt(sum((g**2).sum() for g in found.values()))
  return {name: g * min(1, CLIP_NORM / norm) for name, g in found.items()}


class Moves:
  """The optimizers of all variables, on the center or of one worker."""

  def __init__(self, is_local=False):
    wide = step_adagrad if is_local else step_ftrl
    wide_decay = DECAY if is_local else 0
    self._how = {
      'wide/weights': (wide, RATE, wide_decay),
      'head/weights': (step_momentum, 3 * RATE, 0.2),
      'deep/weights': (step_adam, 0.25 * RATE, DECAY),
      'body/weights': (step_momentum, RATE, DECAY),
      'body/biases': (step_momentum, RATE, 0),
      TABLE: (step_adagrad, TABLE_RATE, 0),
    }
    self._states = {name: {} for name in self._how}

  def __call__(self, values, gradients):
    """Returns {whole name: array} after a step along the gradients."""
    moved = {}
    for name, w in values.items():
      step, rate, decay = self._how[name]
      after = step(w, gradients[name], self._states[name], rate)
      moved[name] = after - rate * decay * w
    return moved


def step_momentum(w, g, state, rate):
  state['v'] = 0.9 * state.get('v', 0) + g
  return w - rate * state['v']


def step_adagrad(w, g, state, rate):
  state['s'] = state.get('s', 0.1) + g**2
  return w - rate * g / np.sqrt(state['s'])


def step_adam(w, g, state, rate):
  t = state['t'] = state.get('t', 0) + 1
  state['m'] = 0.9 * state.get('m', 0) + 0.1 * g
  state['s'] = 0.999 * state.get('s', 0) + 0.001 * g**2
  rate *= np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
  return w - rate * state['m'] / (np.sqrt(state['s']) + 1e-8)


def step_ftrl(w, g, state, rate):
  n = state.get('n', np.full(w.shape, 0.1))
  z = state.get('z', -np.sqrt(0.1) * w)
  state['n'] = n + g**2
  state['z'] = z + rate * g - (np.sqrt(state['n']) - np.sqrt(n)) * w
  return -state['z'] / np.sqrt(state['n'])
