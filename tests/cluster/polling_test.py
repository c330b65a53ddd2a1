"""polling: what a task is asked in a second does not grow with their number."""

import pytest

from distmnist.cluster import polling


@pytest.mark.parametrize(
  ('num_tasks', 'secs'), [(1, 1), (25, 1), (35, 1.4), (500, 20)]
)
def test_all_tasks_together_ask_25_times_a_second(num_tasks, secs):
  assert polling.compute_interval_secs(num_tasks, 1.0) == secs


def test_an_interval_has_an_end():
  assert polling.compute_interval_secs(500, 1.0, 2.0) == 2
