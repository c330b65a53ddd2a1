"""task_state: rates of the last sample while it lives, then of its life."""

import pytest

from distmnist.watching import task_state


@pytest.fixture
def task():
  found = task_state.TaskState()
  found.begin({'time': 0.0, 'every_secs': 2.0})
  for time, examples, staleness in ((2.0, 0, {}), (4.0, 100, {'0': 3, '4': 1})):
    found.take_sample(
      {
        'time': time,
        'state': 'training',
        'examples': examples,
        'examples_per_sec': 7.0,
        'received_bytes': 10 * examples,
        'staleness': staleness,
        'staleness_mean': 0.5,
      }
    )
  return found


def sample_again(task):
  task.take_sample(
    {'time': 14.0, 'state': 'ending', 'examples': 600, 'received_bytes': 1500}
  )


def test_a_task_that_lives_has_the_rates_of_its_last_sample(task):
  assert task.find_rates(is_live=True) == (7.0, 0.5, None, None)
  sample_again(task)
  assert task.find_rates(is_live=True) == (None, None, None, None)


def test_one_that_has_ended_has_those_since_it_began_to_work(task):
  sample_again(task)
  assert task.find_rates(is_live=False) == (50.0, 1.0, 50.0, None)


def test_another_life_begins_with_nothing(task):
  task.begin({'time': 20.0, 'attempt': 2})
  assert task.find_rates(is_live=False) == (None, None, None, None)
  assert (task.attempt, task.every_secs, task.last) == (2, 0.0, None)
