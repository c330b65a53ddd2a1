"""The restarts of one task, with a clock made of numbers."""

import pytest

from distmnist.launching import jobs
from distmnist.launching.supervisor import restart_limits


def make_budget(*limits, **more):
  return restart_limits.Budget(restart_limits.Limits(*limits, **more))


def test_the_wait_doubles_up_to_the_longest():
  budget = make_budget(99)
  found = [budget.take(0.0, 0.0) for _ in range(9)]
  assert found == [
    (i, pytest.approx(secs))
    for i, secs in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], 1)
  ]
  assert budget.total == 9


def test_after_a_steady_minute_the_wait_begins_anew():
  budget = make_budget(9)
  budget.take(0.0, 1.0)
  budget.take(1.0, 2.0)
  assert budget.take(2.0, 62.0) == (3, 0.1)


def test_a_window_of_0_is_the_whole_run():
  budget = make_budget(1, window_secs=0.0)
  assert budget.take(0.0, 0.0) == (1, 0.1)
  assert budget.take(1.0, 1e9) is None
  assert budget.total == 1


def test_within_a_window_only_its_own_restarts_count():
  budget = make_budget(2, window_secs=100.0)
  numbers = [budget.take(now, now)[0] for now in (0.0, 60.0, 101.0)]
  assert numbers == [1, 2, 2]
  assert budget.take(110.0, 110.0) is None
  assert budget.total == 3


def test_without_limits_nothing_starts_again():
  assert restart_limits.Budget(restart_limits.NO_LIMITS).take(0.0, 0.0) is None


def test_a_job_says_its_limits():
  job = jobs.Job(max_restarts=3, restart_window_secs=9.0, min_workers=2)
  assert restart_limits.from_job(job) == restart_limits.Limits(3, 9.0, 2)
