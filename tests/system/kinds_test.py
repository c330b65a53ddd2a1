"""What people write in a model, each kind of it, under every update rule."""

import numpy as np
import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.training.problems import problem_module
from tests.support import kinds, training

_PROBLEM = 'tests.support.kinds'
RULES = [n for n in registry.names(STRATEGIES) if n != 'ring_allreduce']
# The kinds that rules treat in ways of their own: what is closed over, a loop
# in a warm-up, a gradient of rows, a type of numbers, a variable that is not
# trained. Each rule has all kinds with one ps or with two, and these with both.
OWN_WAYS = 'function', 'while_loop', 'gather', 'float64', 'update_op'
CLUSTERS = [
  *((rule, num_ps) for rule in RULES for num_ps in (1, 2)),
  ('ring_allreduce', 0),
]
WITH_ALL = [*((rule, 1 + i % 2) for i, rule in enumerate(RULES)), CLUSTERS[-1]]


@pytest.fixture
def train(make_cluster, set_flags):
  """Returns train(rule, num_ps, num_workers, *words); see training.train."""
  problem_module.import_named([f'--problem={_PROBLEM}'])

  def run(rule, num_ps, num_workers, *words):
    set_flags(
      *(f'--problem={_PROBLEM}', f'--strategy={rule}', '--optimizer=sgd'),
      *('--learning_rate=0.01', f'--batch_size={20 // num_workers}'),
      *('--train_steps=8', '--communication_period=2', *words),
    )
    if num_workers == 1:
      return training.train(cluster_lib.Cluster())
    cluster = make_cluster(num_ps, num_workers)
    return cluster.run_workers(
      lambda i: training.train(cluster.worker(i), cluster.servers[i])
    )[0]

  return run


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule, num_ps', CLUSTERS)
def test_each_rule_trains_all_kinds(train, rule, num_ps):
  names = sorted(kinds.NETS) if (rule, num_ps) in WITH_ALL else OWN_WAYS
  first, last, losses = train(rule, num_ps, 2, f'--kinds={",".join(names)}')
  check_has_moved(first, last, names)
  assert np.isfinite(losses).all()


def check_has_moved(first, last, names):
  assert {name.partition('/')[0] for name in first} == {*names}
  for name, value in first.items():
    assert np.isfinite(last[name]).all(), name
    is_still = np.array_equal(value, last[name])
    assert is_still == (name == 'unused/unused'), name


@pytest.fixture(scope='module')
def alone():
  """What one process learns with the whole batch; filled at first use."""
  return {}


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, num_ps', [('sync_sgd', 1), ('sync_sgd', 2), ('ring_allreduce', 0)]
)
def test_workers_in_lock_step_train_as_one_process(train, alone, rule, num_ps):
  # How a gradient is rounded to 8 bits depends on the size of its batch.
  names = sorted(kinds.NETS.keys() - {'bfloat16'})
  words = f'--kinds={",".join(names)}'
  if not alone:
    alone.update(train('async_sgd', 0, 1, words)[1])
  first, last, _ = train(rule, num_ps, 2, words)
  check_has_moved(first, last, names)
  # Update ops run once a worker; without a ps an average is the worker's own.
  is_ring = rule == 'ring_allreduce'
  apart = ['update_op/mean', 'update_op/count', *['average/mean'] * is_ring]
  assert last['update_op/count'] == 8 * (1 if is_ring else 2)
  assert last.keys() == alone.keys()
  for name, value in alone.items():
    if name not in apart:
      np.testing.assert_allclose(
        last[name].astype(float), value, rtol=0, atol=1e-5, err_msg=name
      )


# What stands beside a kind may hide that it does not train alone.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, rule, num_ps',
  # There are fewer kinds; each has a cluster of its own.
  [(kind, *at) for kind, at in zip(sorted(kinds.NETS), CLUSTERS, strict=False)],
)
def test_a_kind_trains_alone(train, kind, rule, num_ps):
  first, last, _ = train(rule, num_ps, 2, f'--kinds={kind}')
  check_has_moved(first, last, [kind])
