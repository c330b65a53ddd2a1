"""run_length: as many steps at a time as take 100 ms, and where runs end."""

import itertools
import math

import pytest

from distmnist.common import cli
from distmnist.exchange.steps import run_length
from distmnist.transport import strategy

ENDLESS = math.inf


@pytest.mark.parametrize(
  ('step_ms', 'steps_left', 'periods', 'expected'),
  [
    (0.1, ENDLESS, [], 25),
    (9.9, ENDLESS, [], 10),
    (14.0, ENDLESS, [], 5),  # Of 7: with 5 a summary each 100 steps fits.
    (99.0, ENDLESS, [], 1),
    (500.0, ENDLESS, [], 1),
    # To prepare more would take longer than it spares.
    (2.0, 8000, [], 10),
    (2.0, 100, [], 1),
    (0.1, ENDLESS, [10], 20),
    (0.1, ENDLESS, [7], 21),
    (0.1, ENDLESS, [3, 64], 1),
    (0.1, ENDLESS, [100], 25),
    (10.0, ENDLESS, [64], 8),
  ],
)
def test_as_many_steps_as_take_a_tenth_of_a_second(
  step_ms, steps_left, periods, expected
):
  found = run_length.choose(step_ms / 1000, steps_left, periods)
  assert found == expected


@pytest.mark.parametrize('periods', [(), (4,), (6, 9), (1000,)])
def test_a_run_fits_the_periods_of_its_rule(periods):
  for left, step_ms in itertools.product(
    range(0, 5000, 333), (0.01, 0.5, 1, 3, 7, 30)
  ):
    found = run_length.choose(step_ms / 1000, left, periods)
    assert 1 <= found <= 25
    assert found * step_ms <= 100 or found == 1
    assert all(p % found == 0 or found % p == 0 for p in periods)


def test_there_is_room_up_to_what_is_due_next():
  marks = run_length.Marks([1000], [100], global_per_local=2)
  assert marks.find_room(0, 0) == 100
  assert marks.find_room(130, 65) == 35
  assert marks.find_room(961, 480) == 19
  assert marks.find_room(999, 499) == 0
  assert marks.find_room(1000, 500) == 100
  assert run_length.Marks().find_room(7, 7) == math.inf


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


def make_steps(pace, clock, secs):
  for number, of_step in enumerate(secs):
    pace.begin_run(1)
    clock.now += of_step
    pace.end_run(number + 1, 1)


def test_slow_first_steps_and_a_save_among_the_others_do_not_count():
  clock = Clock()
  pace = run_length.Pace(clock=clock)
  make_steps(pace, clock, [1.0] * 5)
  assert not pace.choose_length(ENDLESS, [])
  make_steps(pace, clock, [0.0099] * 4 + [3.0] + [0.0099] * 6)
  assert pace.choose_length(ENDLESS, [])
  assert (pace.length, pace.secs) == (10, pytest.approx(0.0099))
  assert pace.is_long()
  pace.begin_session()
  assert pace.length is None and not pace.choose_length(ENDLESS, [])


def test_a_run_is_short_where_something_is_due_within_it():
  clock = Clock()
  pace = run_length.Pace(run_length.Marks(local_periods=[30]), clock=clock)
  make_steps(pace, clock, [0.0099] * 16)
  pace.choose_length(ENDLESS, [])
  lengths = []
  for _ in range(8):
    lengths.append(pace.length if pace.is_long() else 1)
    pace.end_run(0, lengths[-1])
  assert lengths == [10, 1, 1, 1, 1, 10, 10, 10]


def test_a_run_is_never_longer_than_what_is_due_allows():
  marks = run_length.Marks([40], [12], global_per_local=2)
  assert marks.find_longest() == 12
  assert run_length.Marks([10], global_per_local=3).find_longest() == 3
  assert run_length.Marks().find_longest() == run_length.MAX_STEPS
  clock = Clock()
  pace = run_length.Pace(marks, clock=clock)
  make_steps(pace, clock, [0.0001] * 16)
  assert pace.choose_length(ENDLESS, []) and pace.length == 10


def test_a_worker_that_is_to_stop_begins_no_long_run():
  clock, stopping = Clock(), [False]
  pace = run_length.Pace(clock=clock, is_stopping=lambda: stopping[0])
  make_steps(pace, clock, [0.0099] * 16)
  assert pace.choose_length(ENDLESS, []) == 10 and pace.is_long()
  stopping[0] = True
  assert not pace.is_long()


def test_who_traces_makes_one_step_at_a_time():
  clock = Clock()
  pace = run_length.Pace(run_length.Marks(has_traces=True), clock=clock)
  make_steps(pace, clock, [0.0099] * 16)
  assert pace.choose_length(ENDLESS, []) and pace.length == 1


class Votes(strategy.RunAgreement):
  """Records what a worker votes."""

  def __init__(self):
    self.votes = []

  def vote(self, secs, is_long):
    self.votes.append((secs, is_long))


def test_workers_that_make_the_same_runs_vote_before_each():
  clock, votes = Clock(), Votes()
  marks = run_length.Marks([40])
  pace = run_length.Pace(marks, votes, clock)
  make_steps(pace, clock, [0.0099] * 16)
  # Its own is known, and counts only once all have agreed.
  assert not pace.choose_length(ENDLESS, [])
  pace.begin_run(1)
  assert votes.votes[-1] == (pytest.approx(0.0099), False)
  pace.end_run(17, 1)
  votes.secs = 0.02
  assert pace.choose_length(ENDLESS, []) and pace.length == 5
  assert not pace.is_long()
  pace.begin_run(1)
  assert votes.votes[-1][1]  # From 18 there are 22 steps to 40.
  pace.end_run(18, 1)
  votes.is_long = True
  assert pace.is_long()
  pace.begin_run(18)
  assert not votes.votes[-1][1]  # From 36 there are 4.


@pytest.mark.parametrize('given', ['0', '1001', 'often', '2.5', '', '٣'])
def test_what_is_neither_auto_nor_a_number_is_refused(set_flags, given):
  set_flags(f'--steps_per_run={given}')
  with pytest.raises(cli.UsageError, match='expected auto or a number'):
    run_length.from_flags()


def test_the_number_given_is_taken(set_flags):
  set_flags()
  assert run_length.from_flags() == run_length.AUTO
  set_flags('--steps_per_run=7')
  assert run_length.from_flags() == run_length.find_lease_unit() == 7
