"""traffic: the least time of a step, by the order of pull and push."""

import pytest

from distmnist.exchange import traffic


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


def test_a_ring_carries_both_ways_at_once():
  ring = traffic.Traffic(100.0, 100.0, 3, [])
  assert ring.compute_step_secs(50.0) == 2
  assert ring.compute_helps(50.0) == []
