"""traffic: the least time of a step, by the order of pull and push."""

import dataclasses

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange import traffic
from distmnist.nn import optimizers


def make(order, num_ps=2, num_workers=3):
  share = [1 / num_ps] * num_ps
  return traffic.Traffic(156.0, 156.0, num_workers, share, order=order)


@pytest.mark.parametrize(
  ('order', 'num_ps', 'num_workers', 'secs'),
  [
    ('in_turn', 2, 3, 19.5),  # 2 n M / (k B)
    ('at_once', 2, 3, 9.75),  # n M / (k B)
    ('at_once', 3, 3, 6.5),
    ('at_once', 4, 2, 6.5),  # M / B: the workers' own links decide.
    ('apart', 2, 3, 13),  # 2 M / B
    ('apart', 1, 3, 19.5),
  ],
)
def test_the_least_time_is_that_of_the_order(order, num_ps, num_workers, secs):
  found = make(order, num_ps, num_workers)
  assert found.compute_step_secs(24.0) == pytest.approx(secs)


def test_what_would_help_is_named_with_the_links_that_decide():
  found = make('in_turn')
  assert found.narrowest == 'ps 0'
  assert make('in_turn', 4, 2).narrowest == 'each worker'
  assert found.compute_helps(24.0) == [
    ('pull and push at once', pytest.approx(9.75)),
    ('a ps more', pytest.approx(13)),
    ('half the bytes', pytest.approx(9.75)),
  ]


def test_what_saves_nothing_is_not_named():
  # Pull and push in turn take a worker as long as two workers take the ps.
  (found,) = make('apart', 1, 2).compute_helps(24.0)
  assert found == ('half the bytes', pytest.approx(6.5))


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, pulled, pushed', [('async_sgd', 56, 16), ('agn', 8, 8)]
)
def test_what_the_loss_does_not_reach_is_not_pushed(
  set_flags, name, pulled, pushed
):
  set_flags('--communication_period=2')
  member = cluster.make_cluster(('p0:1', 'p1:1'), ('w0:1',), 'worker', 0)
  with tf.Graph().as_default(), tf.device(member.device_setter()):
    rule = registry.load(STRATEGIES, name).make(member)
    with rule.scope():
      w, frozen = tf.get_variable('w', [4]), tf.get_variable('frozen', [10])
    update = rule.minimize(
      tf.reduce_sum(w * tf.stop_gradient(frozen[0])),
      lambda is_local=False, rate_factor=None: optimizers.make_optimizer(
        'sgd', 0.1
      ),
      tf.train.get_or_create_global_step(),
    )
    found = traffic.compute_traffic(
      member, rule, update, tf.trainable_variables()
    )
  assert (found.pulled, found.pushed) == (pulled, pushed)


def test_a_ring_carries_both_ways_at_once():
  ring = traffic.Traffic(100.0, 100.0, 3, [])
  assert ring.compute_step_secs(50.0) == 2
  assert ring.compute_helps(50.0) == []


def test_rows_of_tables_come_from_all_ps_alike():
  dense = make('apart', 2, 3)
  assert dense.share_of_ps == [0.5, 0.5]
  uneven = dataclasses.replace(dense, share_of_ps=[1, 0])
  both = uneven.with_rows(56.0, 100.0)
  assert (both.pulled, both.pushed) == (212.0, 256.0)
  # 312 of the first ps alone, and half of the 156 more.
  assert both.share_of_ps == [390 / 468, 78 / 468]
  tables = traffic.Traffic(0.0, 0.0, 8, [0, 0]).with_rows(100.0, 100.0)
  assert tables.share_of_ps == [0.5, 0.5]
  # Four of the eight workers' rows go through the link of each ps.
  assert tables.compute_step_secs(100.0) == 4
  assert dict(tables.compute_helps(100.0))['a ps more'] == pytest.approx(8 / 3)


def test_what_workers_exchange_with_each_other_goes_past_the_ps():
  # Of three workers' exchanges a third is with the ps. A worker has one of its
  # own a step, and is the other end of 2 / 3.
  moved = 156 * 5 / 3
  found = traffic.Traffic(moved, moved, 3, [0.2])
  assert found.compute_step_secs(10.0) == 2 * moved / 10
  assert found.narrowest == 'each worker'
  # It is not the links of the ps that decide, and a second one is no help.
  assert 'a ps more' not in dict(found.compute_helps(10.0))
