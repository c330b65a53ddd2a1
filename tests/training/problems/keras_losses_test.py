"""keras_losses: the mean loss that Keras computes of a batch."""

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.training.problems import keras_losses

_RNG = np.random.default_rng(0)
P = _RNG.dirichlet(np.ones(3), [4, 5]).astype('float32')
Y = _RNG.integers(0, 3, [4, 5])
MASK = _RNG.random([4, 5]) < 0.4


class Scaled(keras.losses.Loss):
  """Takes nothing that `from_config` would give."""

  def __init__(self, scale):
    super().__init__()
    self.scale = scale

  def call(self, y, outputs):
    return self.scale * keras.ops.mean(keras.ops.abs(y - outputs), -1)


def compute_both(given, y, outputs, mask=None, weights=None):
  """Returns the loss of arrays and its divisor, computed in a graph."""
  with tf.Graph().as_default(), tf.Session() as session:
    outputs = tf.constant(outputs)
    if mask is not None:
      outputs._keras_mask = tf.constant(mask)
    found = keras_losses.compute(
      given, tf.constant(y), outputs, weights=weights
    )
    return [None if x is None else session.run(x) for x in found]


def compute(*args, **weights):
  """Returns the loss of arrays, computed in a graph."""
  return compute_both(*args, **weights)[0]


@pytest.mark.parametrize('mask', [None, MASK], ids=['all', 'masked'])
@pytest.mark.parametrize(
  'given',
  [
    'sparse_categorical_crossentropy',
    'crossentropy',
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
    keras.losses.SparseCategoricalCrossentropy(reduction=None),
  ],
)
def test_what_is_masked_or_ignored_does_not_count(given, mask):
  counts = np.ones_like(MASK) if mask is None else mask
  if getattr(given, 'ignore_class', None) is not None:
    counts = counts & (given.ignore_class != Y)
  values = -np.log(np.take_along_axis(P, Y[..., None], -1)[..., 0])
  expected = values[counts].mean()
  mean, divisor = compute_both(given, Y, P, mask)
  assert mean == pytest.approx(expected, rel=1e-5)
  if counts.all():
    assert divisor is None
  else:
    assert divisor == pytest.approx(counts.mean())


# Each two of their values are in one case.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('reduction', 'ignored', 'mask', 'has_weights'),
  [
    ('mean', None, None, False),
    ('mean', 0, MASK, True),
    ('mean', None, MASK, True),
    ('mean_with_sample_weight', 0, None, True),
    ('mean_with_sample_weight', None, MASK, False),
    ('mean_with_sample_weight', 0, MASK, True),
  ],
)
def test_parts_that_are_weighed_by_their_divisors_are_the_whole(
  reduction, ignored, mask, has_weights
):
  given = keras.losses.SparseCategoricalCrossentropy(
    ignore_class=ignored, reduction=reduction
  )
  weights = np.float32([0, 0, 1, 2.5]) if has_weights else None
  parts = [
    compute_both(
      given, *(None if a is None else a[cut] for a in (Y, P, mask, weights))
    )
    for cut in (slice(0, 2), slice(2, 4))
  ]
  means, divisors = zip(*parts, strict=True)
  if divisors[0] is None:
    divisors = None
  found = np.average(means, weights=divisors)
  assert np.isfinite(means).all()
  whole = compute(given, Y, P, mask, weights=weights)
  assert found == pytest.approx(whole, rel=1e-5)


def test_a_batch_of_which_nothing_counts_has_a_loss_of_0():
  given = keras.losses.SparseCategoricalCrossentropy()
  assert compute_both(given, Y, P, np.zeros_like(MASK)) == [0, 0]


def test_a_loss_keeps_what_it_was_made_with():
  y = np.zeros([4, 5, 3], 'float32')
  assert compute(Scaled(30), y, P) == pytest.approx(10, rel=1e-5)
  half = compute(Scaled(30), y, P, weights=[0.5])
  assert half == pytest.approx(5, rel=1e-5)
  unreduced = Scaled(30)
  unreduced.reduction = None
  assert compute(unreduced, y, P) == pytest.approx(10, rel=1e-5)


@pytest.mark.parametrize('mask', [None, MASK[:, :4]], ids=['all', 'masked'])
@pytest.mark.parametrize('steps', [1, 4, 5])
def test_a_weight_is_that_of_an_example_and_not_of_a_time_step(steps, mask):
  p, y, w = P[:, :steps], Y[:, :steps], np.float32([2, 0, 1, 0.5])
  mask = mask if steps == 4 else None
  counts = np.ones_like(y) if mask is None else mask
  values = -np.log(np.take_along_axis(p, y[..., None], -1)[..., 0])
  expected = (values * counts * w[:, None]).sum() / counts.sum()
  found = compute('sparse_categorical_crossentropy', y, p, mask, weights=w)
  assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('axes', [(), (3,), (2, 3), (1, 2, 3)])
def test_a_weight_is_that_of_an_example_whatever_a_loss_sums_up(axes):
  images = _RNG.random([4, 4, 4, 4]).astype('float32')
  w = np.float32([2, 0, 1, 0.5])

  def mean_over_axes(y, outputs):
    values = (y - outputs) ** 2
    return keras.ops.mean(values, axes) if axes else values

  expected = ((images**2).mean((1, 2, 3)) * w).mean()
  found = compute(mean_over_axes, 0 * images, images, weights=w)
  assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
  'given', ['mse', lambda y, outputs: (y - outputs) ** 2]
)
def test_labels_are_compared_with_their_own_outputs_in_float32(given):
  y = np.arange(4, dtype='int32')
  for labels, outputs in (y, P[:, :1, 0]), (y[:, None], P[:, 0, 0]):
    expected = ((y - outputs.ravel()) ** 2).mean()
    found = compute(given, labels, outputs)
    assert found == pytest.approx(expected, rel=1e-5)
  with tf.Graph().as_default():
    found, _ = keras_losses.compute(
      given, tf.constant(y), tf.zeros([4, 1], tf.bfloat16)
    )
  assert found.dtype == tf.float32


@pytest.mark.parametrize(
  'given, message',
  [
    ({'a': 'mse', 'b': 'mse'}, 'expected one loss, not 2, for what Keras comp'),
    ('mse', 'expected one output of the model, not 2'),
  ],
)
def test_several_outputs_are_refused(given, message):
  outputs = {'a': tf.zeros([4, 1]), 'b': tf.zeros([4, 1])}
  with pytest.raises(ValueError, match=message):
    keras_losses.compute(given, outputs, outputs)


def test_a_loss_that_one_output_makes_0_is_refused():
  message = "with num_classes > 1.* Consider using 'binary_crossentropy' if"
  for given in 'categorical_crossentropy', 'categorical_focal_crossentropy':
    with pytest.raises(ValueError, match=message):
      compute(given, P[:, :1, 0], P[:, :1, 0])


def test_a_sum_over_the_batch_is_refused():
  with runtime.eagerly():
    given = keras.losses.MeanSquaredError(reduction='sum')
  with pytest.raises(ValueError, match="has reduction='sum', a sum over"):
    compute(given, P, P)
