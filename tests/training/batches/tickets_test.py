"""tickets: those of each run, in lock-step, and of a lease."""

import pytest

from distmnist.training.batches import leases
from distmnist.training.batches import tickets as tickets_lib
from tests.support.sources import make_dealing


def begin(dealing, worker, step=0, base_step=0):
  tickets = tickets_lib.LockStep(dealing, worker)
  tickets.begin(step, base_step)
  return tickets


@pytest.mark.parametrize('unit', [1, 3])
@pytest.mark.parametrize('steps_per_run', [1, 2])
def test_in_lock_step_each_ticket_is_one_workers(unit, steps_per_run):
  dealing, found = make_dealing(3, unit), []
  for worker in range(3):
    tickets, done = begin(dealing, worker), 0
    while tickets.left:
      number = min(steps_per_run, tickets.left)
      found += tickets.take(number)
      steps = [(done + i + 1) // unit for i in range(number)]
      assert tickets.note(steps) == []
      done += number
    assert done == 12 * unit
  assert sorted(found) == list(range(12 * unit * 3))


def test_a_session_begins_with_the_tickets_of_its_global_step():
  tickets = begin(make_dealing(2, 3), worker=1, step=4, base_step=2)
  assert tickets.left == (12 - 4) * 3
  assert tickets.take(4) == [2 * n + 1 for n in (6, 7, 8, 9)]


def test_what_comes_next_may_be_asked_for_before_it_is_taken():
  tickets = begin(make_dealing(2, 2), worker=1)
  assert tickets.peek(3) == tickets.peek(3) == tickets.take(3) == [1, 3, 5]
  leased = tickets_lib.Leased(make_dealing(2, lock_step=False))
  leased.begin(0, leases.Lease(4, 7, [], None))
  assert leased.peek(2) == leased.take(2) == [4, 5]
  assert leased.peek(2) == [6]


def test_what_a_round_that_began_anew_threw_away_is_taken_again():
  tickets = begin(make_dealing(2, 2), worker=0)
  assert tickets.take(4) == [0, 2, 4, 6]
  # The first round was begun anew: its push was thrown away, the second is in.
  assert tickets.note([0, 0, 0, 1]) == [0, 2]
  assert tickets.left == 11 * 2
  assert tickets.take(4) == [0, 2, 8, 10]
  assert tickets.note([1, 2, 2, 3]) == []
  assert tickets.take(1) == [12]


def test_what_was_thrown_away_after_it_had_begun_in_another_run():
  tickets = begin(make_dealing(2, 3), worker=0)
  assert tickets.take(2) == [0, 2]
  tickets.note([0, 0])
  assert tickets.take(1) == [4]
  assert tickets.note([0]) == [0, 2, 4]
  assert tickets.take(3) == [0, 2, 4]


def test_a_lease_is_taken_ticket_by_ticket_and_may_be_given_up():
  tickets = tickets_lib.Leased(make_dealing(2, lock_step=False))
  tickets.begin(3, leases.Lease(10, 15, [], None))
  assert tickets.take(2) == [10, 11]
  assert tickets.note([4, 5]) == []
  assert (tickets.left, tickets.in_hand) == (3, (12, 15))
  tickets.forget()
  assert tickets.left == 0


def test_of_pushes_that_may_be_dropped_none_goes_past_the_last_step():
  dealing = make_dealing(3, lock_step=False, last_step=12, pushes_per_step=2)
  tickets = tickets_lib.Leased(dealing)
  tickets.begin(3, leases.Lease(10, 30, [], None))
  assert tickets.left == (12 - 3) * 2 // 3
  tickets.begin(12, leases.Lease(10, 30, [], None))
  assert tickets.left == 1


def test_a_run_that_began_at_a_later_step_has_its_own_last_step():
  dealing = make_dealing(3, lock_step=False, pushes_per_step=2)
  leased = tickets_lib.Leased(dealing)
  ends_at = dealing._replace(last_step=112)
  leased.begin(103, leases.Lease(0, 30, [], None), ends_at)
  assert leased.left == (112 - 103) * 2 // 3
  in_step = tickets_lib.LockStep(make_dealing(3), 0)
  in_step.begin(103, 103, ends_at)
  assert in_step.left == 112 - 103
