"""batch_hook: which lease is taken, and which worker waits until when."""

import types

from distmnist.cluster import stop_request
from distmnist.training.batches import batch_table, leases
from distmnist.training.hooks import batch_hook
from tests.support import in_process
from tests.support.sources import BATCH, make_dealing, make_source


class FakeTable:
  """A dispatcher.Table in NumPy; `others` act at each look."""

  def __init__(self, dealing, others=()):
    self.values = batch_table.make_table(dealing)
    self.dealing = dealing
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
  """All that a BatchHook calls, in one."""

  warn_secs = 10.0

  def __init__(self, gone=()):
    self.told = []
    self.gone = gone

  def find(self):
    return self.gone

  def busy(self, what, waits_for_others=False):
    self.told.append('waits' if 'wait for' in what else 'ends')

  def pause(self, session):
    self.told.append('pauses')

  def resume(self, session):
    self.told.append('resumes')

  def set_position(self, step):
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
  hook = batch_hook.BatchHook(
    source,
    table,
    fakes,
    fakes,
    fakes,
    is_stop_for_all,
    types.SimpleNamespace(watchdog=fakes, stalls=fakes, stop=NoWait()),
  )
  return source, hook


def push(table, dealing, worker, num_pushes=1):
  table.step += num_pushes
  row = dealing.num_rows + 1 + worker
  table.values[row, 0] += num_pushes * dealing.batches_per_push


def run(source, hook, table):
  """Does all that the worker has in hand, and asks for more."""
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


def test_one_that_comes_back_after_the_last_step_drops_what_it_had_in_hand():
  dealing = make_dealing(2, last_step=12, lock_step=False)
  table, fakes = FakeTable(dealing), Fakes()
  source, hook = make_hook(dealing, table, fakes)
  hook.after_create_session(None, Context())
  assert source.left
  table.step, context = 12, Context()
  hook.after_create_session(None, context)
  assert not source.left and context.stop_requested


def take_for_other(table):
  """Worker 1 takes a lease just after this worker has looked."""
  dealing = make_dealing(2, last_step=2, lock_step=False)
  lease = leases.choose_entry(table.values, table.step, 1, dealing)
  table.values[lease.rows] = lease.values


def test_one_that_is_overtaken_as_it_begins_looks_again():
  dealing = make_dealing(2, last_step=2, lock_step=False)
  table = FakeTable(dealing)
  source, hook = make_hook(dealing, table, Fakes())
  take = table.take

  def take_after_another(session, seen, lease):
    assert table.num_refused < 2
    if not table.num_refused:
      take_for_other(table)
    return take(session, seen, lease)

  table.take = take_after_another
  hook.after_create_session(None, Context())
  assert table.num_refused == 1
  assert source.make_feed(source.left)['fed'][:, 0].tolist() == [BATCH]


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


def test_where_pushes_are_dropped_what_one_that_is_gone_held_comes_first():
  dealing = make_dealing(3, last_step=4, lock_step=False, pushes_per_step=2)
  table = FakeTable(dealing)
  next_row = dealing.num_rows
  table.values[next_row, 0] = 2
  table.values[next_row + 2, :2] = 0, 2
  source, hook = make_hook(dealing, table, Fakes(gone=[1]))
  hook.after_create_session(None, Context())
  assert source.tickets.in_hand == (2, 3)
  table.step = 2
  run(source, hook, table)
  assert source.tickets.in_hand == (0, 2)
  assert table.values[next_row + 2, :2].tolist() == [2, 2]


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
    raise stop_request.StoppedError


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
  stolen = leases.choose_from_gone(table.values, 1, [0], dealing)
  table.values[stolen.rows] = stolen.values
  source.make_feed(1)
  source.note([1])
  push(table, dealing, 0)
  hook.after_run(Context(), None)
  assert source.left > 2  # It was quick: nobody can have taken it for gone.
  hook._last_run -= 11
  hook.after_run(Context(), None)
  assert source.tickets.in_hand[0] >= stolen.end
