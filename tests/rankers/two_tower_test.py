"""two_tower: the second half of the categories meets the rest in a product."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.rankers import two_tower


@pytest.mark.slow
def test_who_asks_and_what_is_shown_meet_in_one_product(tf_session):
  tf.set_random_seed(0)
  who, what = (tf.placeholder(tf.int64, [2, 1]) for _ in range(2))
  logits = two_tower.build(tf.ones([2, 1]), tf.concat([who, what], 1), 8, 1)
  tf_session.run(tf.global_variables_initializer())
  scores = np.array(
    [
      tf_session.run(logits, {who: [[a], [a]], what: [[4], [5]]})
      for a in range(4)
    ]
  )
  # Of width 1 they are an outer product, of rank 1.
  assert np.linalg.matrix_rank(scores, tol=1e-5) <= 1
