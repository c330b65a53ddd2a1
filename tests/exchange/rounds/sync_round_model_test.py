"""A model of the lock-step rounds: every order of messages and deaths, R = N.

Each state of two ps, N workers and the chief's thread is visited, breadth
first, up to some rounds and deaths. A message is one transition, so that they
overtake each other as on a network. What is looked for is a stall, a state
short of the last round in which nothing can happen any more, and a mean of
contributions that are not of N different workers.

The model follows sync_round.py, round_entry.py, contributions.py of
exchange/rounds: an accumulator drops what is older than its step, a token is
life * 100 + step, a chief that comes back begins a life, a ps notes the token
of each worker's last contribution. Not in it: R other than N, and a message
that outlives its sender.
"""

import dataclasses

import pytest

from tests.support import state_search

_LIFE = 100
_NUM_PS = 2
_ALL_PS = frozenset(range(_NUM_PS))
# What the token table says of a worker.
_HAS_TOKEN, _WAITS, _WAS_NEVER_HERE = 1, 0, -1


@dataclasses.dataclass(frozen=True)
class Worker:
  """A worker: alive or not, its token, the ps that its push is on its way to.

  `token` is None while it waits; `left` is empty until it has begun to push.
  """

  is_alive: bool = True
  token: int | None = _LIFE
  left: frozenset = frozenset()
  holds: int = _HAS_TOKEN
  queue: tuple = ()


@dataclasses.dataclass(frozen=True)
class Updates:
  """A thread of the chief: the ps still to be asked, and still to answer."""

  unasked: frozenset = _ALL_PS
  unanswered: frozenset = _ALL_PS


@dataclasses.dataclass(frozen=True)
class Accumulator:
  """The step below which it drops, who has contributed, who waits for it.

  `givers` are workers, in order; `asking` are threads. `notes` are the (worker,
  token) that the ps has noted.
  """

  step: int = _LIFE
  givers: tuple = ()
  asking: tuple = ()
  notes: frozenset = frozenset()

  def give(self, worker, token, has_notes):
    """Returns the Accumulator that a contribution has come to."""
    note = worker, token
    is_in = token >= self.step and not (has_notes and note in self.notes)
    givers = tuple(sorted((*self.givers, *[worker] * is_in)))
    # Those of rounds that are over tell nothing any more.
    notes = {n for n in self.notes if n[1] >= self.step} | {note}
    return dataclasses.replace(self, givers=givers, notes=frozenset(notes))


@dataclasses.dataclass(frozen=True)
class State:
  workers: tuple
  threads: tuple
  accumulators: tuple = (Accumulator(),) * _NUM_PS
  life: int = 1
  step: int = 0
  num_deaths: int = 0
  has_notes: bool = True

  @property
  def token(self):
    return self.life * _LIFE + self.step


def _put(items, index, **changes):
  changed = dataclasses.replace(items[index], **changes)
  return (*items[:index], changed, *items[index + 1 :])


def _move_worker(state, i):
  """Yields the states that a living worker can come to."""
  worker = state.workers[i]
  if worker.token is None:
    if worker.queue:
      token, *queue = worker.queue
      yield dataclasses.replace(
        state,
        workers=_put(
          state.workers, i, token=token, queue=tuple(queue), holds=_HAS_TOKEN
        ),
      )
    return
  # All of its contribution is on its way at once; each part arrives by itself.
  for ps in worker.left or _ALL_PS:
    found, left = state.accumulators[ps], (worker.left or _ALL_PS) - {ps}
    changes = {'left': left}
    if not left:
      changes |= {'token': None, 'holds': _WAITS}
    yield dataclasses.replace(
      state,
      workers=_put(state.workers, i, **changes),
      accumulators=_put(
        state.accumulators,
        ps,
        **vars(found.give(i, worker.token, state.has_notes)),
      ),
    )


def _enter(state, i):
  """Yields the state in which worker `i`, not the chief, is back."""
  worker, token = state.workers[i], state.token
  if worker.queue:
    token = max(token, *worker.queue)
  elif worker.holds == _WAITS and any(
    other.holds == _HAS_TOKEN for other in state.workers
  ):
    return  # It looks again.
  yield dataclasses.replace(
    state, workers=_put(state.workers, i, **vars(Worker(token=token)))
  )


def _take_over(state, num_threads):
  """Returns the state in which the chief is back."""
  token = (state.life + 1) * _LIFE + state.step
  others = tuple(
    dataclasses.replace(worker, queue=(*worker.queue, token))
    for worker in state.workers[1:]
  )
  return dataclasses.replace(
    state,
    workers=(Worker(token=token), *others),
    threads=(Updates(),) * num_threads,
    accumulators=(Accumulator(token),) * _NUM_PS,
    life=state.life + 1,
  )


def _move_thread(state, t):
  """Yields the states that a thread of the chief can come to."""
  thread = state.threads[t]
  for ps in thread.unasked:
    asking = (*state.accumulators[ps].asking, t)
    yield dataclasses.replace(
      state,
      threads=_put(state.threads, t, unasked=thread.unasked - {ps}),
      accumulators=_put(state.accumulators, ps, asking=asking),
    )
  for ps in thread.unanswered - thread.unasked:
    found = state.accumulators[ps]
    if found.asking[0] == t and len(found.givers) >= len(state.workers):
      taken = dataclasses.replace(
        found, step=found.step + 1, givers=(), asking=found.asking[1:]
      )
      left = thread.unanswered - {ps}
      yield dataclasses.replace(
        state,
        threads=_put(state.threads, t, unanswered=left),
        accumulators=(
          *state.accumulators[:ps],
          taken,
          *state.accumulators[ps + 1 :],
        ),
      )
  if not thread.unanswered:
    state = dataclasses.replace(state, step=state.step + 1)
    yield dataclasses.replace(
      state,
      workers=tuple(
        dataclasses.replace(w, queue=(*w.queue, state.token))
        for w in state.workers
      ),
      threads=_put(state.threads, t, **vars(Updates())),
    )


def _find_next(state, num_threads):
  """Yields what can come next without a death."""
  for i, worker in enumerate(state.workers):
    if worker.is_alive:
      yield from _move_worker(state, i)
    elif i:
      yield from _enter(state, i)
    else:
      yield _take_over(state, num_threads)
  for t in range(len(state.threads)):
    yield from _move_thread(state, t)


def _find_deaths(state):
  """Yields the states in which one more worker has died."""
  for i, worker in enumerate(state.workers):
    if not worker.is_alive:
      continue
    # Its push may have arrived in part, the table and its queue are kept.
    dead = _put(state.workers, i, is_alive=False, left=frozenset())
    changes = {'workers': dead, 'num_deaths': state.num_deaths + 1}
    if not i:  # What its threads ask for is cancelled.
      changes['threads'] = ()
      changes['accumulators'] = tuple(
        dataclasses.replace(a, asking=()) for a in state.accumulators
      )
    yield dataclasses.replace(state, **changes)


def _is_wrong(state):
  """Whether a worker has contributed twice to what is still to be taken."""
  return any(len({*a.givers}) < len(a.givers) for a in state.accumulators)


def find_fault(num_workers, num_threads, num_steps, num_deaths, has_notes=True):
  """Returns (a state at fault or None, how many were seen)."""
  first = State(
    (Worker(),) * num_workers, (Updates(),) * num_threads, has_notes=has_notes
  )
  return state_search.find_fault(
    first,
    lambda state: _find_next(state, num_threads),
    _find_deaths,
    _is_wrong,
    num_steps,
    num_deaths,
  )


@pytest.mark.parametrize(
  'num_workers, num_deaths',
  [
    *((1, 2), (2, 0), (2, 1), (3, 0)),
    pytest.param(2, 2, marks=pytest.mark.slow),
  ],
)
def test_in_no_order_of_messages_and_deaths_all_wait_or_one_counts_twice(
  num_workers, num_deaths
):
  fault, num_states = find_fault(num_workers, 1, 2, num_deaths)
  assert fault is None
  assert num_states > 20


def test_without_notes_one_that_dies_in_mid_push_counts_twice():
  fault, _ = find_fault(2, 1, 2, 1, has_notes=False)
  assert fault.num_deaths == 1
  assert (1, 1) in [a.givers for a in fault.accumulators]


def test_two_threads_of_updates_stall_each_waits_for_what_the_other_has():
  # What incarnations.LossWatch and RoundHook._end_updates must not let happen.
  stall, _ = find_fault(2, 2, 3, 0)
  assert all(w.token is None for w in stall.workers)
  first = [a.asking[0] for a in stall.accumulators if a.asking]
  assert {a.givers for a in stall.accumulators} <= {(), (0, 1)}
  assert sorted(first) == [0, 1]
