"""What each rule does with the gradient of a row that has moved meanwhile.

Worker 0 pulls row 3, which is 0, for an x of 12: its gradient is -12. Before
it pushes worker 1 brings the row to 2 and then moves row 7. The rate is 0.5.
"""

import functools

import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import layers
from distmnist.strategies import (
  async_sgd,
  dc_asgd,
  drop_stale,
  ssp,
  staleness_aware,
)

NUM_ROWS = 20


def build(x):
  """Returns (w, loss): (w - x[1])^2 / 2 for the row w of number x[0]."""
  ids = tf.cast(x[:1], tf.int64)
  zeros = tf.zeros_initializer()
  rows = layers.embedding(ids, NUM_ROWS, 1, 'table', initializer=zeros)
  return rows, tf.reduce_sum((rows - x[1]) ** 2) / 2


@pytest.mark.slow
@pytest.mark.parametrize(('staleness', 'num_ps'), [(1, 1), (2, 2)])
@pytest.mark.parametrize(
  ('make_rule', 'after'),
  [
    (async_sgd.AsyncSgd, {1: 8, 2: 8}),  # 2 + 12 / 2
    (functools.partial(ssp.Ssp, bound=4), {1: 8, 2: 8}),
    # The rate is divided by the staleness, 1 or 2.
    (staleness_aware.StalenessAware, {1: 8, 2: 5}),
    # A push is dropped as a whole.
    (functools.partial(drop_stale.DropStale, max_staleness=1), {1: 8, 2: 2}),
    # -12 + lambda (-12)^2 (2 - 0) = -10: by row 3, whatever row 7 does.
    (functools.partial(dc_asgd.DcAsgd, dc_lambda=1 / 144), {1: 7, 2: 7}),
  ],
)
def test_a_stale_gradient_of_a_row(
  make_stepper, make_rule, after, staleness, num_ps
):
  stepper = make_stepper(num_ps, 2, make_rule, size=2, build=build)
  stepper.begin(0, [3, 12])
  assert stepper.step(1, [3, 4])[:2] == (1, 0)
  if staleness == 2:
    stepper.step(1, [7, 6])
  step, found, center = stepper.end(0)
  is_dropped = after[staleness] == 2
  assert found == staleness
  assert step == staleness + (not is_dropped)
  rows = {i: row for i, [row] in enumerate(center) if row}
  expected = {3: pytest.approx(after[staleness])}
  assert rows == expected | ({7: 3} if staleness == 2 else {})
  # The next pull of worker 0 is of the row as it is.
  stepper.step(0, [3, 0])
  assert stepper.read_center()[3] == [pytest.approx(after[staleness] / 2)]
