"""Who clicks on what: 13 numbers and 26 categories, as in Criteo's logs.

The examples are drawn from a seed. Each category c has --clicks_rows rows of
its own, and an example takes one: the k-th most frequent with a probability
proportional to k^-1.1 (Zipf). A click has probability sigmoid(z), where z is
the planted model

  z = a + b . numbers + sum_c w_c[row_c] + sum_{c < 4} u_c[row_c] . u_{c+4}[...]

so the best AUC that any model can reach, that of z itself, is known; best_auc
reports it beside the model's.

A net of rankers/ is

  build(numbers, ids, num_rows, width) -> logits [n]

  numbers: float32 [n, 13].
  ids: int64 [n, 26] in 0..num_rows - 1, for one table of all categories.
  width: --table_width.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import registry
from distmnist.common.names import RANKERS
from distmnist.data import metric_total

best = '+auc'
NUM_NUMBERS, NUM_CATEGORIES = 13, 26
_EXPONENT, _FACTORS, _NUM_PAIRS = 1.1, 4, 4
# Bins of predicted probability; AUC is exact except for pairs within a bin.
_NUM_BINS = 1000
_SPLITS = 'train', 'validation', 'test'

_RANKER = flags.DEFINE_enum(
  'ranker', 'dlrm', registry.names(RANKERS), 'clicks: the net.'
)
_CLICKS_ROWS = flags.DEFINE_integer(
  'clicks_rows', 1000, 'clicks: rows of each category.', lower_bound=1
)
_CLICKS_EXAMPLES = flags.DEFINE_integer(
  'clicks_examples',
  100_000,
  'clicks: training examples; validation and test have a tenth as many each.',
  lower_bound=10,
)
_CLICKS_SEED = flags.DEFINE_integer(
  'clicks_seed', 0, 'clicks: seed of the examples.', lower_bound=0
)
_TABLE_WIDTH = flags.DEFINE_integer(
  'table_width', 8, 'clicks: width of the rows of a category.', lower_bound=1
)


def load(split: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """Returns the examples of a split.

  Returns:
    ({'numbers': float32 [n, 13], 'rows': int32 [n, 26]},
     {'clicked': float32 [n] of 0 and 1, 'chance': float32 [n], sigmoid(z)}).
  """
  num_examples = _CLICKS_EXAMPLES.value
  if split != 'train':
    num_examples //= 10
  return _draw_split(
    _CLICKS_SEED.value, _SPLITS.index(split), num_examples, _CLICKS_ROWS.value
  )


def _draw_split(
  seed: int, split: int, num_examples: int, num_rows: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  bias, slopes, weights, factors = _draw_model(seed, num_rows)
  rng = np.random.default_rng([seed, split])
  numbers = rng.standard_normal([num_examples, NUM_NUMBERS], np.float32)
  chances = np.arange(1, num_rows + 1) ** -_EXPONENT
  ends = np.cumsum(chances) / chances.sum()
  rows = np.empty([num_examples, NUM_CATEGORIES], np.int32)
  z = bias + numbers @ slopes.astype(np.float32)
  # One category at a time, so that millions of examples fit in memory.
  for c in range(NUM_CATEGORIES):
    drawn = np.searchsorted(ends, rng.random(num_examples))
    rows[:, c] = np.minimum(drawn, num_rows - 1)  # The sum may be below 1.
    z += weights[c, rows[:, c]]
  for c in range(_NUM_PAIRS):
    other = c + _NUM_PAIRS
    z += (factors[c, rows[:, c]] * factors[other, rows[:, other]]).sum(1)
  chance = (1 / (1 + np.exp(-z))).astype(np.float32)
  clicked = (rng.random(num_examples) < chance).astype(np.float32)
  return (
    {'numbers': numbers, 'rows': rows},
    {'clicked': clicked, 'chance': chance},
  )


@functools.lru_cache(maxsize=1)
def _draw_model(
  seed: int, num_rows: int
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
  """Returns (a, b [13], w [26, rows], u [8, rows, factors])."""
  rng = np.random.default_rng([seed, len(_SPLITS)])
  return (
    -0.5,
    rng.normal(scale=0.2, size=NUM_NUMBERS),
    rng.normal(scale=0.3, size=[NUM_CATEGORIES, num_rows]),
    rng.normal(scale=0.5, size=[2 * _NUM_PAIRS, num_rows, _FACTORS]),
  )


def build(x: Mapping[str, tf.Tensor], is_training: bool) -> tf.Tensor:
  """Returns the logits, float32 [n]."""
  del is_training
  net = registry.load(RANKERS, _RANKER.value)
  num_rows = _CLICKS_ROWS.value
  ids = tf.cast(x['rows'], tf.int64) + num_rows * tf.range(
    NUM_CATEGORIES, dtype=tf.int64
  )
  num_ids = num_rows * NUM_CATEGORIES
  return net.build(x['numbers'], ids, num_ids, _TABLE_WIDTH.value)


def loss(y: Mapping[str, tf.Tensor], outputs: tf.Tensor) -> tf.Tensor:
  """Returns the log loss, float32 [n]."""
  return tf.nn.sigmoid_cross_entropy_with_logits(
    labels=y['clicked'], logits=outputs
  )


def metrics(
  y: Mapping[str, tf.Tensor], outputs: tf.Tensor
) -> dict[str, metric_total.Total]:
  """Returns auc, and best_auc of the planted model, by bins of probability."""
  found = {'auc': tf.sigmoid(outputs), 'best_auc': y['chance']}
  return {
    name: count_auc(probability, y['clicked'])
    for name, probability in found.items()
  }


def count_auc(probability: tf.Tensor, clicked: tf.Tensor) -> metric_total.Total:
  """Returns what `finish` computes an AUC from.

  Args:
    probability, clicked: float32 [n], the latter of 0 and 1.
  """
  bins = tf.cast(probability * (_NUM_BINS - 1), tf.int32)
  counts = [
    tf.math.unsorted_segment_sum(part, bins, _NUM_BINS)
    for part in (clicked, 1 - clicked)
  ]
  return metric_total.Total(counts, _compute_auc(*counts))


def finish(means: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the metrics, with the AUCs over all examples."""
  aucs = {
    name: _compute_auc(*(np.asarray(x, float) for x in means[name]))
    for name in ('auc', 'best_auc')
    if name in means
  }
  return {**means, **aucs}


def _compute_auc(
  clicked: np.ndarray | tf.Tensor, other: np.ndarray | tf.Tensor
) -> float | tf.Tensor:
  """Returns the AUC, from the counts of both classes in each ascending bin."""
  cumsum, total = (np.cumsum, np.sum)
  if tf.is_tensor(clicked):
    cumsum, total = tf.cumsum, tf.reduce_sum
  below = cumsum(other) - other / 2
  pairs = total(clicked) * total(other)
  found = total(clicked * below)
  if tf.is_tensor(found):
    return tf.math.divide_no_nan(found, pairs)
  return float(found / pairs) if pairs else 0.5


def serve(outputs: tf.Tensor) -> dict[str, tf.Tensor]:
  """Returns what a SavedModel outputs: the probability of a click, [n]."""
  return {'probability': tf.sigmoid(outputs)}
