"""Each invariant holds in a good history, and a made one breaks it alone."""

import pytest

from tests.runner import import_benchmark


@pytest.fixture(scope='module')
def checker():
  return import_benchmark('fault_checker')


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


def took(life, *tickets):
  return life, 'took', {'tickets': [*tickets]}


def at(life, event, step):
  return life, event, {'step': step}


def start(life):
  return life, 'start', {}


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
]


def without(index):
  return GOOD[:index] + GOOD[index + 1 :]


def test_a_good_history_breaks_nothing(checker):
  assert checker.check(make(*GOOD), killed={'0a'}, num_tickets=5, logs={}) == []


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
    ([*GOOD, ran('1a', 6, 5)], '1 batches beyond the last: 5'),
  ],
)
def test_a_history_that_breaks_one_invariant(checker, rows, words):
  assert words in checker.check(make(*rows), killed={'0a'}, num_tickets=5)


def test_what_was_on_its_way_in_a_pause_may_arrive_once(checker):
  rows = [*GOOD[:15], ran('0a', 4), *GOOD[15:]]
  assert checker.check_lives(make(*rows)) == []


def test_a_checkpoint_whose_chief_was_killed_before_it_said_so_counts(checker):
  rows = [*GOOD, at('0b', 'saving', 7), at('0c', 'restored', 7)]
  assert checker.check_restores(make(*rows)) == []


def test_after_a_restore_what_came_since_is_read_again(checker):
  rows = [
    *GOOD,
    ran('1a', 9, 5),
    at('0b', 'restored', 5),
    at('1a', 'session', 5),
    ran('1a', 6, 5),
  ]
  assert checker.check_reads(make(*rows), 6, {'0a'}) == []
  # But not what the checkpoint has.
  again = [*rows, ran('1a', 7, 0)]
  assert checker.check_reads(make(*again), 6, ()) == ['1 batches read twice: 0']


def test_local_steps_whose_push_never_came_are_done_again(checker):
  rows = [
    at('0a', 'session', 0),
    ran('0a', 0, 0),
    ran('0a', 5, 1),  # The push of both.
    ran('0a', 5, 2),  # Local: 3 would have pushed it.
    at('0a', 'restored', 9),
    at('0a', 'session', 9),
    ran('0a', 9, 2),
    ran('0a', 10, 3),
  ]
  assert checker.check_reads(make(*rows), 4) == []
  again = [*rows, ran('0a', 11, 0)]
  assert checker.check_reads(make(*again), 4) == ['1 batches read twice: 0']


def test_batches_in_the_hands_of_a_killed_life_are_in_doubt(checker):
  lost = [row for row in GOOD if row != ran('0b', 5, 1, 4)]
  lost.append(ran('0b', 4, 4))
  assert checker.check_reads(make(*lost), 5, {'0a'}) == []
  assert checker.check_reads(make(*lost), 5, ()) == ['1 batches never read: 1']


def test_the_last_batch_that_was_used_says_how_many_there_are(checker):
  assert checker.count_tickets(make(*GOOD)) == 5
  assert checker.count_tickets([]) == 0


def evaluated(step, accuracy):
  return '0a', 'evaluated', {'step': step, 'accuracy': accuracy}


def test_the_best_is_the_best_of_all_lives_and_the_one_that_is_kept(checker):
  events = make(evaluated(10, 0.9), evaluated(20, 0.8))
  assert checker.check_best(events, 10, 0.9, 10) == []
  assert checker.check_best(events, 20, 0.8, 20) == [
    'the best accuracy was 0.9 at step 10, and 0.8 is told'
  ]
  assert checker.check_best(events, 10, 0.9, 20) == [
    'step 10 is the best, and 20 is kept'
  ]
  assert checker.check_best([], None, None, None) == []


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
