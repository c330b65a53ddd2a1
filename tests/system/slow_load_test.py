"""A worker whose data take longer to load than its ps would wait for it."""

import pytest

PROBLEM = """
import time
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  if split == 'train':
    time.sleep(13)
  return np.ones([200, 2]), np.ones([200])

def build(x, is_training):
  return tf.squeeze(x @ tf.get_variable('w', [2, 1]), 1)

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.mark.daily
@pytest.mark.slow
def test_a_ps_waits_for_a_worker_that_loads_its_data(
  tasks, make_real_cluster, tmp_path
):
  (tmp_path / 'net.py').write_text(PROBLEM)
  ps, workers = make_real_cluster(1, 1).start_all(
    f'--problem={tmp_path}/net.py', '--start_timeout_secs=6', '--epochs=1'
  )
  assert tasks.wait(*workers, *ps) == [0, 0]
