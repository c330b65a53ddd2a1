"""The rows of a step, as plan tells them, are those of the data."""

import numpy as np
import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.problems import clicks
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import table_batches

CLUSTER = cluster_lib.make_cluster(('a:1', 'b:1'), ('w:1',), 'worker', 0)


@pytest.mark.slow
def test_each_row_of_a_batch_counts_once(set_flags):
  set_flags('--problem=clicks', '--clicks_examples=250', '--ranker=deepfm')
  found = table_batches.measure(CLUSTER, problem_lib.from_flags(), 100)
  rows = clicks.load('train')[0]['rows'] + 1000 * np.arange(26)
  parts = [rows[:100], rows[100:200], rows[200:]]
  num_keys = np.mean([len(np.unique(part)) for part in parts])
  # A table of rows of 8 numbers, and one of weights.
  assert found.num_ids == pytest.approx(2 * 26 * 250 / 3)
  assert found.num_keys == pytest.approx(2 * num_keys)
  assert found.pulled == pytest.approx(num_keys * (8 + 1) * 4)
  assert found.pushed == pytest.approx(found.pulled + 2 * num_keys * 8)
  shown = found._replace(num_ids=1000, num_keys=250).format().splitlines()
  assert shown[0].startswith(
    'rows a step: 1,000 ids, of which 250 (25%) are different; pulls '
  )
  ids, counts = np.unique(rows, return_counts=True)
  called, share = found.hottest['rows']
  assert share == counts.max() / rows.size
  assert int(called.removeprefix('row ')) in ids[counts == counts.max()]
  assert shown[1].startswith(f'hottest rows: row {ids[counts.argmax()]} is ')
  assert shown[1].count(f'{share:.1%} of the ids of ') == 2


@pytest.mark.slow
def test_the_first_batches_may_have_no_id_of_a_table(set_flags, tmp_path):
  path = tmp_path / 'problem.py'
  path.write_text("""
import numpy as np
import tensorflow.compat.v1 as tf
from distmnist.nn import layers

def load(split):
  return np.zeros(6, np.int64), np.zeros(6, np.float32)

def build(x, is_training):
  none = tf.RaggedTensor.from_tensor(x[:, tf.newaxis], lengths=x)
  return layers.embedding(none, 9, 2, 'tags')[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
""")
  set_flags(f'--problem={path}')
  found = table_batches.measure(CLUSTER, problem_lib.from_flags(), 2)
  assert found == (0, 0, 0, 0, {})
  assert found.format() == (
    'rows a step: none, as the first batches have no ids'
  )


@pytest.mark.slow
def test_without_a_table_no_rows_move(set_flags):
  set_flags('--dataset=synthetic')
  assert table_batches.measure(CLUSTER, problem_lib.from_flags(), 10) is None
