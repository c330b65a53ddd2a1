"""idle_flags: what is given for another rule, net or schedule is named."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.training import flag_checks, idle_flags
from distmnist.training.problems import problem as problem_lib


@pytest.fixture
def describe(set_flags):
  """Returns describe(*flags), its lines for one process."""

  def find(*words):
    set_flags(*words)
    rule, strategy = flag_checks.make_strategy(cluster.Cluster())
    with tf.Graph().as_default():  # It looks for the model's sparse tables.
      return idle_flags.describe(rule, strategy)

  return find


@pytest.mark.parametrize(
  'words, lines',
  [
    (
      ['--worker_learning_rates=0.1,0.2'],
      [
        '--worker_learning_rates=0.1,0.2 is for --strategy=sync_sgd, and this '
        'is async_sgd'
      ],
    ),
    (
      ['--sync_barrier=shard', '--strategy=sagn'],
      ['--sync_barrier=shard is for --strategy=sync_sgd, and this is sagn'],
    ),
    (
      ['--lr_boundaries=5,6', '--initializer=he', '--model=dnn'],
      [
        '--initializer=he is for --model=mlp, and this is dnn',
        '--lr_boundaries=5,6 is for --lr_schedule=step, and this is constant',
      ],
    ),
    (
      ['--strategy=dc_asgd', '--dc_decay=0.5'],
      ['--dc_decay=0.5 has no effect without --dc_adaptive'],
    ),
    (
      ['--dc_decay=0.5'],
      ['--dc_decay=0.5 is for --strategy=dc_asgd, and this is async_sgd'],
    ),
    (
      ['--local_optimizer=adam'],
      [
        '--local_optimizer=adam is for strategies with local steps, and '
        'async_sgd has none'
      ],
    ),
    (
      ['--table_optimizer=ftrl', '--ftrl_l1=1'],
      ['--table_optimizer=ftrl is for sparse tables, and the model has none'],
    ),
    (
      ['--momentum=0.5', '--strategy=agn', '--local_optimizer=adam'],
      [
        '--momentum=0.5 is for --optimizer=momentum, nesterov, rmsprop, lars, '
        'and this is adam and sgd'
      ],
    ),
    (
      [
        *('--strategy=easgd', '--optimizer=adam', '--learning_rate=1'),
        *('--local_optimizer=sgd', '--local_learning_rate=2'),
      ],
      [
        '--learning_rate=1.0 is for the center, which easgd alone moves, and '
        '--local_learning_rate is given',
        '--optimizer=adam is for the center, which easgd alone moves, and '
        '--local_optimizer is given',
      ],
    ),
  ],
)
def test_what_is_for_something_else_is_named(describe, words, lines):
  assert describe(*words) == lines


@pytest.mark.parametrize(
  'words',
  [
    ['--strategy=agn', '--communication_period=3', '--local_optimizer=adam'],
    ['--sync_replicas', '--worker_learning_rates=0.1'],
    ['--lr_schedule=step', '--lr_boundaries=5', '--lr_decay_rate=0.5'],
    ['--strategy=easgd', '--optimizer=lars', '--momentum=0.5'],
    ['--strategy=agn', '--local_optimizer=rmsprop', '--momentum=0.5'],
    ['--strategy=dc_asgd', '--dc_adaptive', '--dc_decay=0.5'],
    ['--pull_ahead=0', '--model=mlp', '--hidden_units=3', '--epochs=2'],
  ],
)
def test_what_fits_is_not_named(describe, words):
  assert describe(*words) == []


def test_a_model_is_not_looked_at_where_there_is_none(set_flags):
  set_flags('--initializer=he', '--model=cnn')
  rule, strategy = flag_checks.make_strategy(cluster.Cluster())
  assert idle_flags.describe(rule, strategy, has_model=False) == []


def test_flags_of_images_are_named_where_there_are_none(set_flags):
  set_flags('--problem=clicks', '--dataset=synthetic', '--model=cnn')
  rule, strategy = flag_checks.make_strategy(cluster.Cluster())
  problem = problem_lib.from_flags()
  assert idle_flags.describe(rule, strategy, False, problem) == [
    '--dataset=synthetic is for images, and this is --problem=clicks',
    '--model=cnn is for images, and this is --problem=clicks',
  ]
