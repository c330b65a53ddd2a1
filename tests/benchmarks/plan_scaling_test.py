"""plan_scaling: the plan's forecast for many workers, and where it ends."""

import numpy as np
import pytest

from distmnist.exchange import traffic as traffic_lib
from tests.support.runner import import_benchmark

plan_scaling = import_benchmark('plan_scaling')

MB = 1e6
# A Gbit/s is 125 MB a second each way.
SECS = 1 / 125


def make_traffic(num_ps, order):
  return traffic_lib.Traffic(MB, MB, 8, [1 / num_ps] * num_ps, order=order)


ORDERS = {
  'sync_sgd': 'in_turn',
  'sync_sgd, a barrier a shard': 'at_once',
  'async_sgd': 'apart',
  'async_sgd, a pull ahead': 'at_once',
  'agn, T = 10': 'apart',
}
TRAFFICS = {
  (rule, num_ps): make_traffic(num_ps, order)
  for rule, order in ORDERS.items()
  for num_ps in plan_scaling.NUMS_PS
} | {
  # 2 * 7 / 8 of it, for 8 workers.
  ('ring_allreduce, no ps', 0): traffic_lib.Traffic(1.75 * MB, 1.75 * MB, 8, [])
}


def find_secs(rule, num_workers=8, gbits=1):
  speeds = plan_scaling.compute_speeds(TRAFFICS, rule, num_workers, gbits)
  return {num_ps: 1 / speed / SECS for num_ps, speed in speeds.items()}


@pytest.mark.parametrize(
  'rule, secs, end',
  [
    # All pull and then all push: twice 8 workers' bytes through k links.
    ('sync_sgd', {1: 16, 2: 8, 4: 4, 8: 2, 16: 2, 32: 2}, 8),
    ('sync_sgd, a barrier a shard', {1: 8, 2: 4, 4: 2, 8: 1, 16: 1, 32: 1}, 8),
    # A worker's own link carries both, one after the other.
    ('async_sgd', {1: 8, 2: 4, 4: 2, 8: 2, 16: 2, 32: 2}, 4),
  ],
)
def test_a_rule_scales_until_the_link_of_the_worker_decides(rule, secs, end):
  found = find_secs(rule)
  assert found == pytest.approx(secs)
  speeds = {num_ps: 1 / s for num_ps, s in found.items()}
  assert plan_scaling.find_end(speeds) == end


def test_where_more_ps_still_help_there_is_no_end():
  found = find_secs('sync_sgd', num_workers=256, gbits=10)
  assert found[32] == pytest.approx(2 * 256 / 32 / 10)
  assert plan_scaling.find_end({n: 1 / s for n, s in found.items()}) is None


def test_in_a_ring_all_send_what_is_not_their_own_part():
  assert find_secs('ring_allreduce, no ps') == pytest.approx({0: 1.75})
  found = find_secs('ring_allreduce, no ps', num_workers=64)
  assert found == pytest.approx({0: 2 * 63 / 64})


@pytest.mark.slow
def test_a_figure_has_a_panel_for_each_number_of_workers_and_each_link():
  figure = plan_scaling.build_figure(TRAFFICS, 'the title')
  figure.draw_without_rendering()
  titles = [axes.get_title('left') for axes in figure.axes]
  assert titles[0] == '8 workers, 1 Gbit/s'
  assert titles[-1] == '256 workers, 100 Gbit/s'
  assert len(titles) == 9
  lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
  assert {*plan_scaling.RULES} <= {*lines}
  np.testing.assert_allclose(
    lines['sync_sgd'].get_ydata(), 125 / np.array([16, 8, 4, 2, 2, 2])
  )
  # The same where there is no ps.
  assert len(set(lines['ring_allreduce, no ps'].get_ydata())) == 1


@pytest.mark.slow
def test_the_bytes_are_those_of_the_plan_itself(set_flags):
  set_flags()
  words = ['--model=softmax', '--dataset=synthetic']
  found = plan_scaling.compute_traffic('agn, T = 10', 2, words)
  assert found.num_workers == 8
  assert len(found.share_of_ps) == 2
  whole = plan_scaling.compute_traffic('async_sgd', 2, words)
  assert whole.pulled == pytest.approx(10 * found.pulled)
  ring = plan_scaling.compute_traffic('ring_allreduce, no ps', 0, words)
  assert ring.pushed == pytest.approx(whole.pushed * 2 * 7 / 8)
  ahead = plan_scaling.compute_traffic('async_sgd, a pull ahead', 2, words)
  assert (whole.order, ahead.order) == ('apart', 'at_once')
