"""A loss with weights of its own: workers in lock-step are one process.

Different numbers count in their batches, and in some nothing does.
"""

import numpy as np
import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.training.problems import problem_module
from tests.support import problems, training

pytestmark = pytest.mark.slow

NUM, WORDS, LENGTH = 12, 9, 5
PROBLEM = """
import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers

NUM, LENGTH, WORDS, HAS_WORDS, HAS_TABLE = {}
rng = np.random.default_rng(5)
# Words from 1 on, followed by 0; half of the texts have none.
lengths = rng.integers(-5, 6, [NUM, 1]) * HAS_WORDS
words = rng.integers(1, WORDS, [NUM, LENGTH])
x = np.where(np.arange(LENGTH) < lengths, words, 0)
w = rng.uniform(0.1, 3, NUM)


def load(split):
  if split == 'train':
    return x, x % 3, w


def build(x, is_training):
  if HAS_TABLE:
    rows = layers.embedding(tf.reshape(x, [-1]), WORDS, 4, 'table')
    rows = tf.reshape(rows, [-1, LENGTH, 4])
  else:
    rows = tf.gather(tf.get_variable('table', [WORDS, 4]), x)
  penalty = lambda weights: 0.1 * tf.nn.l2_loss(weights)
  dense = tf.get_variable('dense', [4, 3], regularizer=penalty)
  return tf.tensordot(rows, dense, 1) + tf.get_variable('bias', [3])


def loss(y, outputs):
  values = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=y, logits=outputs
  )
  return values, tf.cast(y > 0, tf.float32)
"""


@pytest.fixture
def train(make_cluster, set_flags, tmp_path):
  """Returns run(kind, rule, num_ps, num_workers, *words) -> the last values."""

  def run(kind, rule, num_ps, num_workers, *words):
    values = NUM, LENGTH, WORDS, kind != 'no words', kind == 'table'
    path = problems.write(tmp_path / 'net.py', PROBLEM.format(values))
    problem_module.import_named([f'--problem={path}'])
    set_flags(
      *(f'--problem={path}', f'--strategy={rule}', '--optimizer=momentum'),
      *(f'--batch_size={NUM // num_workers}', '--train_steps=6', *words),
    )
    if num_workers == 1:
      return training.train(cluster_lib.Cluster())[1]
    cluster = make_cluster(num_ps, num_workers)
    return cluster.run_workers(
      lambda i: training.train(cluster.worker(i), cluster.servers[i])
    )[0][1]

  return run


# A step of no words moves the weights by regularizers and momentum alone.
SLICED = '--gradient_accumulation=2', '--batch_size=3'


@pytest.mark.daily(but=['table-sync_sgd-1-3-words0'])
@pytest.mark.parametrize(
  'kind, rule, num_ps, num_workers, words',
  [
    ('table', 'sync_sgd', 1, 3, ()),
    ('dense', 'sync_sgd', 2, 2, SLICED),
    ('dense', 'sync_sgd', 2, 3, ('--sync_barrier=shard',)),
    ('dense', 'ring_allreduce', 0, 3, ('--bucket_mib=1e-5',)),
    ('no words', 'sync_sgd', 1, 2, ()),
    ('no words', 'sync_sgd', 1, 2, ('--sync_barrier=shard',)),
    ('no words', 'ring_allreduce', 0, 2, ()),
  ],
)
def test_workers_in_lock_step_are_one_process(
  train, kind, rule, num_ps, num_workers, words
):
  expected = train(kind, 'async_sgd', 0, 1)
  found = train(kind, rule, num_ps, num_workers, *words)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(
      found[name], value, rtol=0, atol=1e-6, err_msg=name
    )
