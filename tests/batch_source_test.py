"""batch_source: which batches a worker has, run by run, and who waits."""

import collections

import numpy as np
import pytest

from distmnist import batch_source, data_order, dispatcher, history, preemption
from tests import in_process

BATCH = 4
NUM_IMAGES = 30


def make_dealing(num_workers=2, unit=1, last_step=12, lock_step=True, **how):
  return dispatcher.Dealing(
    num_workers, BATCH, unit, last_step, lock_step, **how
  )


def begin(dealing, worker, step=0, base_step=0):
  tickets = batch_source.LockStep(dealing, worker)
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


def make_source(dealing, worker=0, seed=3):
  return batch_source.BatchSource(
    dealing, NUM_IMAGES, seed, worker, 'fed', history.History()
  )


def test_a_feed_has_the_place_and_the_images_of_each_batch():
  dealing = make_dealing(2)
  source = make_source(dealing, worker=1)
  source.begin(3, dispatcher.make_table(dealing))
  rows = source.make_feed(2)['fed']
  assert rows.shape == (2, 1 + BATCH)
  order = data_order.Order(NUM_IMAGES, 3)
  for row, ticket in zip(rows, (3 * 2 + 1, 4 * 2 + 1), strict=True):
    places = np.arange(BATCH) + ticket * BATCH
    assert row.tolist() == [places[0], *order.find_images(places)]


def test_all_workers_read_each_image_once_an_epoch():
  # 30 images in batches of 4: an epoch ends within a batch.
  dealing, found = make_dealing(3, last_step=10), []
  for worker in range(3):
    source = make_source(dealing, worker)
    source.begin(0, dispatcher.make_table(dealing))
    for step in range(10):
      found += source.make_feed(1)['fed'][0, 1:].tolist()
      source.note([step + 1])
  assert set(collections.Counter(found).values()) == {4}


def test_with_streams_of_their_own_no_two_batches_share_their_draws():
  dealing = make_dealing(2, has_own_streams=True)
  places, images = [], []
  for worker in range(2):
    source = make_source(dealing, worker)
    source.begin(0, dispatcher.make_table(dealing))
    rows = source.make_feed(3)['fed']
    places += rows[:, 0].tolist()
    images.append(rows[:, 1:].ravel().tolist())
  assert len(set(places)) == 6
  assert images[0] != images[1]


def test_the_history_says_what_was_run_and_what_was_thrown_away_later():
  dealing, told = make_dealing(2, 3), []
  source = make_source(dealing, worker=1)
  source._history.write = lambda event, **fields: told.append(
    (event, fields['tickets'])
  )
  source.begin(4, dispatcher.make_table(dealing, base_step=4))
  for step in (4, 4, 4):
    source.make_feed(1)
    source.note([step])
  told = [row for row in told if row[0] != 'took']
  assert told == [
    *(('ran', [ticket]) for ticket in (1, 3, 5)),
    ('undone', [1, 3, 5]),
  ]


def test_a_blank_feed_takes_nothing():
  dealing = make_dealing(1)
  source = make_source(dealing)
  source.begin(0, dispatcher.make_table(dealing))
  assert not source.make_blank_feed(2)['fed'].any()
  assert source.make_feed(1)['fed'][0, 0] == 0


class FakeTable:
  """A dispatcher.Table in NumPy; `others` act at each look."""

  def __init__(self, dealing, others=()):
    self.values = dispatcher.make_table(dealing)
    self.step = 0
    self._others = iter(others)
    self.num_refused = 0

  def look(self, session):
    del session
    next(self._others, lambda table: None)(self)
    return self.step, self.values.copy()

  def look_at_step(self, session):
    del session
    return self.step

  def take(self, session, table, lease):
    del session
    if (self.values[lease.rows] != table[lease.rows]).any():
      self.num_refused += 1
      return False
    self.values[lease.rows] = lease.values
    return True


class Fakes:
  """Watchdog, rule, steps and lost workers of a BatchHook, which are told."""

  warn_secs = 10.0

  def __init__(self, gone=()):
    self.told = []
    self.gone = gone

  def find(self):
    return self.gone

  @property
  def stalls(self):
    return self

  def busy(self, what):
    self.told.append('waits' if 'wait for' in what else 'ends')

  def pause(self, session):
    self.told.append('pauses')

  def resume(self, session):
    self.told.append('resumes')

  def know(self, step):
    self.told.append(step)


class NoWait(in_process.NoStop):
  num_waits = 0

  def wait(self, secs):
    self.num_waits += 1
    assert self.num_waits < 100


class Context:
  session = None
  stop_requested = False

  def request_stop(self):
    self.stop_requested = True


def make_hook(dealing, table, fakes, is_stop_for_all=lambda: False):
  source = make_source(dealing)
  hook = batch_source.BatchHook(
    source,
    table,
    fakes,
    fakes,
    fakes,
    is_stop_for_all,
    fakes,
    NoWait(),
  )
  return source, hook


def push(table, dealing, worker, num_pushes=1):
  table.step += num_pushes
  row = dealing.num_rows + 1 + worker
  table.values[row, 0] += num_pushes * dealing.batches_per_push


def run(source, hook, table):
  """Does all that the worker has in its hands, and asks for more."""
  context, number = Context(), source.left
  rows = source.make_feed(number)['fed']
  steps = []
  for _ in range(number):
    push(table, source.dealing, source.worker)
    steps.append(table.step)
  source.note(steps)
  hook.after_run(context, None)
  return rows[:, 0].tolist(), context.stop_requested


def test_a_worker_alone_takes_lease_after_lease_and_stops_at_the_end():
  dealing = make_dealing(2, last_step=12, lock_step=False)
  table, fakes = FakeTable(dealing), Fakes()
  source, hook = make_hook(dealing, table, fakes)
  hook.after_create_session(None, Context())
  places, is_over = [], False
  while not is_over:
    found, is_over = run(source, hook, table)
    places += found
  assert places == [n * BATCH for n in range(12)]
  assert fakes.told == [12]


def take_for_other(table):
  """Worker 1 takes a lease just after this worker has looked."""
  dealing = make_dealing(2, last_step=2, lock_step=False)
  lease = dispatcher.choose_entry(table.values, table.step, 1, dealing)
  table.values[lease.rows] = lease.values


def test_who_has_nothing_to_take_pauses_until_the_others_are_done():
  dealing = make_dealing(2, last_step=2, lock_step=False)
  table = FakeTable(dealing, [take_for_other])
  fakes = Fakes()
  source, hook = make_hook(dealing, table, fakes)
  hook.after_create_session(None, Context())
  table._others = iter(
    [lambda t: None] * 3 + [lambda t: push(t, dealing, 1, 1)]
  )
  assert run(source, hook, table) == ([BATCH], True)
  assert fakes.told == ['waits', 'pauses', 2, 'ends']


def test_what_one_that_is_gone_had_not_done_is_taken_over():
  dealing = make_dealing(2, last_step=2, lock_step=False)
  table = FakeTable(dealing, [take_for_other])
  fakes = Fakes(gone=[1])
  source, hook = make_hook(dealing, table, fakes)
  hook.after_create_session(None, Context())
  _, is_over = run(source, hook, table)
  assert not is_over and source.left == 1
  assert fakes.told == ['waits', 'pauses', 'ends', 'resumes']
  _, is_over = run(source, hook, table)
  assert is_over


def test_a_stop_for_all_ends_the_wait():
  dealing = make_dealing(2, last_step=2, lock_step=False)
  table, fakes = FakeTable(dealing, [take_for_other]), Fakes()
  source, hook = make_hook(dealing, table, fakes, lambda: True)
  hook.after_create_session(None, Context())
  _, is_over = run(source, hook, table)
  assert is_over and fakes.told == []


class StopsAmid(NoWait):
  def wait(self, secs):
    self.is_requested = True
    raise preemption.StoppedError


def test_a_signal_ends_the_wait_in_order():
  dealing = make_dealing(2, last_step=2, lock_step=False)
  table, fakes = FakeTable(dealing, [take_for_other]), Fakes()
  source, hook = make_hook(dealing, table, fakes)
  hook._stop = StopsAmid()
  hook.after_create_session(None, Context())
  _, is_over = run(source, hook, table)
  assert is_over and fakes.told == ['waits', 'pauses', 'ends']


def test_one_that_was_held_up_looks_whether_its_lease_is_still_its_own():
  dealing = make_dealing(2, last_step=40, lock_step=False)
  table, fakes = FakeTable(dealing), Fakes()
  source, hook = make_hook(dealing, table, fakes)
  hook.after_create_session(None, Context())
  assert source.left > 2
  stolen = dispatcher.choose_from_gone(table.values, 1, [0], dealing)
  table.values[stolen.rows] = stolen.values
  source.make_feed(1)
  source.note([1])
  push(table, dealing, 0)
  hook.after_run(Context(), None)
  assert source.left > 2  # It was quick: nobody can have taken it for gone.
  hook._last_run -= 11
  hook.after_run(Context(), None)
  assert source.tickets.in_hand[0] >= stolen.end
