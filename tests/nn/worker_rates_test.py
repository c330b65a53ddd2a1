"""worker_rates: what the factors are, and which rates are refused."""

import re

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.nn import worker_rates
from distmnist.strategies import sync_sgd  # noqa: F401  Its flags.
from distmnist.transport import strategy


def make_member():
  return cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)


def test_the_factor_is_that_of_the_worker(set_flags):
  assert worker_rates.factor_from_flags(make_member(), 2) is None
  set_flags('--worker_learning_rates=0.5,0.25', '--learning_rate=0.1')
  # 2 lr / base.
  assert worker_rates.factor_from_flags(make_member(), 2) == pytest.approx(5)


@pytest.mark.parametrize(
  'rates, words, message',
  [
    *(
      (rates, [], ': expected 2 learning rates of 0 or more, one a worker')
      for rates in (
        '0.1',
        '0.1,0.2,0.3',
        '0.1,x',
        '0.1,',
        '0.1,-0.2',
        'inf,0.1',
        '0.1,nan',
      )
    ),
    *(
      (
        '0.1,0.2',
        [word],
        f' needs plain sgd and a --learning_rate above 0, not {name} at '
        f'{rate:g}: else no step is in proportion to the gradient',
      )
      for word, name, rate in (
        ('--optimizer=momentum', 'momentum', 0.01),
        ('--weight_decay=0.1', 'sgd with --weight_decay', 0.01),
        ('--learning_rate=0', 'sgd', 0),
      )
    ),
    *(
      (
        '0.1,0.2',
        [f'--replicas_to_aggregate={number}'],
        ' needs one gradient a worker in each update: leave '
        '--replicas_to_aggregate alone',
      )
      for number in (1, 3)
    ),
    *(
      (
        '0.1,0.2',
        [word],
        ' does not go with --table_optimizer or --table_learning_rate: leave '
        'one of them out',
      )
      for word in ('--table_optimizer=adagrad', '--table_learning_rate=1')
    ),
    (
      '0.1,0.2',
      ['--table_strategy=async_sgd'],
      ' does not go with --table_strategy, by which the gradients of tables '
      'are applied at --learning_rate: leave one of them out',
    ),
  ],
)
def test_rates_that_do_not_fit_are_refused(set_flags, rates, words, message):
  given = f'--worker_learning_rates={rates}'
  set_flags(given, *words)
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  expected = re.escape(given + message)
  with pytest.raises(cli.UsageError, match=f'^{expected}$'):
    worker_rates.factor_from_flags(
      member, strategy.replicas_to_aggregate_from_flags(member)
    )
