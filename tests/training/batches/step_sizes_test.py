"""step_sizes: what a table keeps of the sizes of earlier steps."""

import numpy as np
import pytest

from distmnist.training.batches import step_sizes


@pytest.mark.parametrize(
  ('base_step', 'size', 'earlier', 'step', 'described'),
  [
    (0, 64, 0, 0, 0),  # No step yet.
    (0, 64, 0, 5, 0),
    (0, 32, 0, 5, -32),
    (5, 64, -32, 5, -32),  # A life without a step.
    (5, 32, 0, 5, -32),
    (5, 64, -32, 9, step_sizes.MIXED),
    (5, 32, -64, 5, 0),  # Its size was never used.
    (5, 64, step_sizes.MIXED, 9, step_sizes.MIXED),
    (5, 0, 0, 9, 0),  # A table that does not tell.
  ],
)
def test_steps_are_compared_with_those_of_all_lives(
  base_step, size, earlier, step, described
):
  table = np.zeros([8, 3], np.int64)
  table[0, 0], table[4] = base_step, (0, size, earlier)
  assert step_sizes.describe(table, step, 64) == described
