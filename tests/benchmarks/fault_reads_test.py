"""What was read, and how often, by a history: one is made up for each case."""

import pytest

from tests.benchmarks.fault_checker_test import at, end, make, ran, start, took
from tests.support.runner import import_benchmark


@pytest.fixture(scope='module')
def check():
  reads = import_benchmark('lib.fault_reads')
  return lambda rows, **kwargs: reads.check(make(*rows), **kwargs)


def undone(life, *tickets):
  return life, 'undone', {'tickets': [*tickets]}


BEGUN = [start('0a'), at('0a', 'session', 0), took('0a', 0, 1, 2, 3)]


def test_each_is_read_once(check):
  rows = [*BEGUN, ran('0a', 1, 0), ran('0a', 2, 1), end('0a')]
  assert check(rows) == []
  assert check([*rows, ran('0a', 3, 3)]) == ['1 batches never read: 2']
  assert check([*rows, ran('0a', 3, 0)]) == ['1 batches read twice: 0']


def test_streams_are_apart(check):
  def of(worker, row):
    life, event, fields = row
    return life, event, fields | {'stream': worker}

  rows = [
    row
    for worker, life in enumerate(('0a', '1a'))
    for row in (
      of(worker, took(life, 0, 1)),
      of(worker, ran(life, 1, 0)),
      of(worker, ran(life, 2, 1)),
      end(life),
    )
  ]
  assert check(rows) == []
  assert check([*rows, of(1, ran('1a', 3, 0))]) == [
    '1 batches read twice: 0 of worker 1'
  ]


def test_what_a_killed_life_was_at_may_have_no_line(check):
  rows = [
    *BEGUN,
    ran('0a', 1, 0),
    start('0b'),
    at('0b', 'session', 2),
    took('0b', 2, 3),
  ]
  after = [ran('0b', 3, 2), ran('0b', 4, 3), end('0b')]
  assert check([*rows, *after]) == []
  # It had not yet got to the one after that.
  assert check([*rows, *after[1:]]) == ['1 batches never read: 2']
  # And what it had pushed is done.
  again = [*after[:-1], took('0b', 0), ran('0b', 5, 0), end('0b')]
  assert check([*rows, *again]) == ['1 batches read twice: 0']


@pytest.mark.parametrize('is_told_to_stop', [False, True])
def test_local_steps_of_a_lost_life_may_be_done_again(check, is_told_to_stop):
  rows = [
    start('0a'),
    at('0a', 'session', 0),
    took('0a', 0, 1, 2, 3, 4, 5, per_push=2),
    ran('0a', 1, 0),  # Others have pushed since the session began.
    ran('0a', 2, 1),
    ran('0a', 2, 2),
    *([end('0a')] if is_told_to_stop else []),
    start('0b'),
    at('0b', 'session', 2),
    took('0b', 2, 3, 4, 5, per_push=2),
    *[ran('0b', 3 + t // 2, t) for t in (2, 3, 4, 5)],
  ]
  assert check([*rows, end('0b')]) == []
  again = [took('0b', 0, 1), ran('0b', 9, 0), ran('0b', 10, 1), end('0b')]
  assert check([*rows, *again]) == ['2 batches read twice: 0, 1']


def test_what_a_restore_undoes_is_read_again(check):
  before = [*BEGUN, *[ran('0a', 10 + t, t) for t in range(4)]]
  restore = [
    at('0a', 'restoring', 10),
    at('0a', 'restored', 10),
    at('0a', 'session', 10),
    took('0a', 3),
  ]
  rows = [*before, *restore, ran('0a', 11, 3), end('0a')]
  assert check(rows) == []
  # Not what is surely in the checkpoint, ...
  early = [*BEGUN, ran('0a', 1, 0), *rows[3:]]
  again = [*early[:-1], took('0a', 0), ran('0a', 12, 0), end('0a')]
  assert check(again) == ['1 batches read twice: 0']
  # ... but what surely is not.
  assert check([*before, *restore, end('0a')]) == ['1 batches never read: 3']


def test_a_restore_that_was_broken_off_undoes_nothing(check):
  rows = [*BEGUN, ran('0a', 9, 0), at('0b', 'restoring', 0)]
  again = [*rows, took('0b', 0), ran('0b', 10, 0), end('0b')]
  assert check(again) == ['1 batches read twice: 0']


def test_what_was_thrown_away_is_read_again(check):
  rows = [*BEGUN, ran('0a', 0, 0), undone('0a', 0), ran('0a', 1, 0), end('0a')]
  assert check(rows) == []
  assert check([*rows[:-2], end('0a')]) == ['1 batches never read: 0']


def test_one_that_was_held_up_may_push_what_another_has_by_now(check):
  rows = [*BEGUN, ran('0a', 1, 0), took('1a', 1, 2), ran('1a', 2, 1)]
  assert check([*rows, ran('0a', 3, 1), end('0a'), end('1a')]) == []


def test_what_is_left_at_the_end_may_be_allowed(check):
  rows = [*BEGUN, took('1a', 4), ran('1a', 1, 4), end('1a')]
  rows += [ran('0a', 2, 0), end('0a')]
  assert check(rows) == ['3 batches never read: 1, 2, 3']
  assert check(rows, may_leave=True) == []
  # One that is started again after the end takes nothing over.
  assert check([*rows, start('0b')], may_leave=True) == []
  # Nor does one whose first session finds the last step made.
  killed = [row for row in rows if row != end('0a')]
  late = [start('0b'), at('0b', 'session', 2), end('0b')]
  assert check([*killed, *late], may_leave=True) == []
  # But what it takes, and does not hold to the end, is read.
  took_less = [*late[:-1], took('0b', 3), end('0b')]
  assert check([*killed, *took_less], may_leave=True) == [
    '1 batches never read: 2'
  ]
