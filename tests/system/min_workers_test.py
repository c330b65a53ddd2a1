"""Whether each rule bears the loss of a worker for good."""

import pytest

from distmnist.cluster import cluster
from distmnist.common import cli, refusals, registry
from distmnist.common.names import STRATEGIES
from distmnist.training import flag_checks

WAITING = {'bmuf', 'ring_allreduce', 'sagn', 'ssp', 'sync_sgd'}


def check(set_flags, name, *words):
  set_flags(f'--strategy={name}', *words)
  spec = cluster.Cluster(
    () if name == 'ring_allreduce' else ('x:1',), ('x:2', 'x:3')
  )
  rule, strategy = flag_checks.make_strategy(spec)
  refusals.refuse(
    flag_checks.OF_RULE,
    rule=rule,
    strategy=strategy,
    groups=(),
    min_workers='1',
  )


@pytest.mark.parametrize('name', registry.names(STRATEGIES))
def test_rules_in_which_all_wait_for_all_refuse(set_flags, name):
  if name not in WAITING:
    check(set_flags, name)
    return
  with pytest.raises(cli.UsageError, match=f'--min_workers=1 .* under {name}'):
    check(set_flags, name)


def test_easgd_refuses_where_all_exchange_together(set_flags):
  with pytest.raises(cli.UsageError, match='under easgd'):
    check(set_flags, 'easgd', '--easgd_sync')
