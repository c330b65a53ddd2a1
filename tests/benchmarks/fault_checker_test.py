"""Each invariant holds in a good history, and a made-up one breaks it alone."""

import pytest

from tests.support.runner import import_benchmark


@pytest.fixture(scope='module')
def checker():
  return import_benchmark('lib.fault_checker')


def make(*rows):
  """Returns events, one second apart; a row is (life, event, fields)."""
  return [
    {
      'worker': int(life[0]),
      'life': life,
      'event': event,
      'time': float(second),
      **fields,
    }
    for second, (life, event, fields) in enumerate(rows)
  ]


def ran(life, step, *tickets):
  return life, 'ran', {'step': step, 'tickets': [*tickets]}


def took(life, *tickets, per_push=1):
  return life, 'took', {'tickets': [*tickets], 'per_push': per_push}


def at(life, event, step):
  return life, event, {'step': step}


def start(life):
  return life, 'start', {}


def end(life):
  return life, 'end', {}


# Two workers; 0a is killed after it has saved, and 0b takes over.
GOOD = [
  start('0a'),
  at('0a', 'session', 0),
  at('0a', 'saving', 0),
  at('0a', 'saved', 0),
  start('1a'),
  at('1a', 'session', 0),
  took('0a', 0, 1),
  took('1a', 2, 3),
  ran('0a', 1, 0),
  ran('1a', 2, 2),
  at('0a', 'saving', 2),
  at('0a', 'saved', 2),
  start('0b'),
  at('0b', 'session', 2),
  took('0b', 1, 4),
  ran('1a', 3, 3),
  ran('0b', 5, 1, 4),
  at('0b', 'saving', 5),
  at('0b', 'saved', 5),
  end('1a'),
  end('0b'),
]


def without(index):
  return GOOD[:index] + GOOD[index + 1 :]


def test_a_good_history_breaks_nothing(checker):
  assert checker.check(make(*GOOD), logs={}) == []


@pytest.mark.parametrize(
  'rows, words',
  [
    # The one that was paused goes on beside its successor.
    (
      [*GOOD[:15], ran('0a', 4), ran('0a', 5), *GOOD[15:]],
      'worker 0: life 0a did 2 things more after the next one had begun',
    ),
    ([*GOOD, ran('1a', 2)], 'worker 1, life 1a: step 2 came after 3'),
    (
      [*GOOD, at('0b', 'restored', 2), at('0b', 'session', 2)],
      'step 2 was restored, but 5 was saved last',
    ),
    (
      [*GOOD, at('0c', 'saved', 6), at('0b', 'saved', 7)],
      'life 0b saved again after another life had',
    ),
    (without(15), '1 batches never read: 3'),
    ([*GOOD, ran('1a', 6, 2)], '1 batches read twice: 2'),
  ],
)
def test_a_history_that_breaks_one_invariant(checker, rows, words):
  assert words in checker.check(make(*rows))


def test_what_was_on_its_way_in_a_pause_may_arrive_once(checker):
  rows = [*GOOD[:15], ran('0a', 4), *GOOD[15:]]
  assert checker.check_lives(make(*rows)) == []


def test_who_waited_as_the_center_was_restored_sees_its_step_once(checker):
  rows = [*GOOD[:-2], at('0c', 'restored', 2), ran('1a', 2)]
  assert checker.check_steps(make(*rows)) == []
  assert checker.check_steps(make(*rows, ran('1a', 3), ran('1a', 2))) == [
    'worker 1, life 1a: step 2 came after 3'
  ]


def test_a_checkpoint_whose_chief_was_killed_before_it_said_so_counts(checker):
  rows = [*GOOD, at('0b', 'saving', 7), at('0c', 'restored', 7)]
  assert checker.check_restores(make(*rows)) == []


def judged(step, accuracy, is_noted=True):
  fields = {'step': step, 'value': accuracy}
  rows = ('0a', 'evaluated', fields), ('0a', 'noted', fields)
  return rows if is_noted else rows[:1]


def test_the_best_is_the_best_of_all_lives_and_the_one_that_is_kept(checker):
  events = make(*judged(10, 0.9), *judged(20, 0.8))
  assert checker.check_best(events, 10, 0.9, 10) == []
  assert checker.check_best(events, 20, 0.8, 20) == [
    'the best accuracy was 0.9 at step 10, and 0.8 is told'
  ]
  assert checker.check_best(events, 10, 0.9, 20) == [
    'step 10 is the best, and 20 is kept'
  ]
  assert checker.check_best(events, 20, 0.95, 20) == [
    'step 20 is told as the best, with 0.95, and was never evaluated so'
  ]
  assert checker.check_best([], None, None, None) == []


def test_what_could_not_be_kept_need_not_be_the_best_and_may_be(checker):
  events = make(*judged(10, 0.8), *judged(20, 0.9, is_noted=False))
  assert checker.check_best(events, 10, 0.8, 10) == []
  assert checker.check_best(events, 20, 0.9, 20) == []


def test_a_long_wait_needs_a_line(checker):
  rows = [start('0a'), *[start('1a')] * 20, ran('0a', 1)]
  events = make(*rows)
  said = {0: [(5.0, 'waiting for ps 0')]}
  late = {0: [(25.0, 'step 1')]}
  assert checker.check_waits(events, said) == []
  assert checker.check_waits(events, late) == [
    'worker 0, life 0a: 21 s without a word after start'
  ]
  assert checker.check_waits(events, late, [(0, 3.0, 19.0)]) == []
