"""A model of rounds of many units: every order of messages and deaths, R = N.

As sync_round_model_test.py, but each unit is on a ps of its own, is applied as
soon as all its contributions are in, and lets workers go on by what its ps has
noted, as units.py says. What a ps does by itself is one transition. What is
looked for is a stall; a worker that begins a step before all units are at the
step of its token; and a mean in which a worker counts twice.
"""

import dataclasses

import pytest

from tests.support import state_search

_LIFE = 100
_HAS_TOKEN, _WAITS = 1, 0
# As units._MOST_WAKES, without what lets a worker go.
_MOST_WAKES = 2


@dataclasses.dataclass(frozen=True)
class Worker:
  """What a worker does, and what ps 0 keeps of it: `holds` and `queue`.

  `does` is 'step'; 'dead'; 'looked' of one that comes back; 'empty', 'note' or
  'prepared' of a chief that takes over; 'wrong' of one that computes with what
  is not yet updated. `left` are the units that it has not been at,
  `past` those that it has pulled, at `pulled` or later, and `asleep` those that
  must wake it and have done so `woken` times in this step.
  """

  does: str = 'step'
  token: int = _LIFE
  left: frozenset = frozenset()
  past: frozenset = frozenset()
  asleep: frozenset = frozenset()
  woken: tuple = (0,) * 3
  pulled: int = _LIFE
  next: int | None = None
  holds: int = _HAS_TOKEN
  queue: tuple = ()


@dataclasses.dataclass(frozen=True)
class Unit:
  """An accumulator, what its ps has noted, and what wakes each worker.

  `notes` has the last token with which each worker gave.
  """

  notes: tuple
  wakes: tuple
  step: int = _LIFE
  givers: tuple = ()
  applied: int = 0
  handed: int = _LIFE


@dataclasses.dataclass(frozen=True)
class State:
  """`untaken` are the units that the chief's thread waits for."""

  workers: tuple
  units: tuple
  untaken: frozenset
  life: int = 1
  tried: int = 1
  step: int = 0
  num_deaths: int = 0

  @property
  def token(self):
    return self.life * _LIFE + self.step

  def put(self, i, **changes):
    changed = dataclasses.replace(self.workers[i], **changes)
    workers = (*self.workers[:i], changed, *self.workers[i + 1 :])
    return dataclasses.replace(self, workers=workers)

  def pull(self, i, u):
    worker = self.workers[i]
    pulled = min(worker.pulled, self.units[u].applied)
    return self.put(i, past=worker.past | {u}, pulled=pulled)

  def put_unit(self, u, **changes):
    changed = dataclasses.replace(self.units[u], **changes)
    units = (*self.units[:u], changed, *self.units[u + 1 :])
    return dataclasses.replace(self, units=units)

  def give_out(self, workers, token):
    """Puts a token of the round into the queues of `workers`."""
    for i in workers:
      self = self.put(i, queue=(*self.workers[i].queue, token))
    return self


def _set(items, index, value):
  return (*items[:index], value, *items[index + 1 :])


class Model:
  """Rounds of N workers and some units, whose states are all visited."""

  def __init__(
    self, num_workers, num_units, looks=True, notes=True, tries=True
  ):
    """
    Args:
      looks: bool, whether one that is woken looks at what is noted.
      notes: bool, whether a chief that takes over notes that for all units.
      tries: bool, whether it gives its life a number that no other had.
    """
    self.all = frozenset(range(num_units))
    self.num_workers = num_workers
    self.looks, self.notes, self.tries = looks, notes, tries

  def make_first(self):
    worker = Worker(left=self.all)
    none = (0,) * self.num_workers
    unit = Unit(none, none)
    return State(
      (worker,) * self.num_workers, (unit,) * len(self.all), self.all
    )

  def find_next(self, state):
    """Yields what can come next without a death."""
    for i, worker in enumerate(state.workers):
      yield from getattr(self, f'_{worker.does}')(state, i, worker)
    if state.workers[0].does == 'step':
      yield from self._update(state)

  def find_deaths(self, state):
    for i, worker in enumerate(state.workers):
      if worker.does != 'dead':
        kept = {'holds': worker.holds, 'queue': worker.queue}
        dead = state.put(i, **vars(Worker('dead', 0)) | kept)
        yield dataclasses.replace(dead, num_deaths=state.num_deaths + 1)

  def _step(self, state, i, worker):
    for u in worker.left:
      unit, left = state.units[u], worker.left - {u}
      is_in = worker.token >= unit.step and unit.notes[i] != worker.token
      yield state.put_unit(
        u,
        givers=tuple(sorted((*unit.givers, *[i] * is_in))),
        notes=_set(unit.notes, i, worker.token),
      ).put(i, left=left, holds=worker.holds if left else _WAITS)
    for u in self.all - worker.left - worker.past:
      wakes = state.units[u].wakes
      if u not in worker.asleep:
        if state.units[u].handed > worker.token:
          yield state.pull(i, u)
        else:
          yield state.put(i, asleep=worker.asleep | {u})
      elif wakes[i]:
        woken = state.put_unit(u, wakes=_set(wakes, i, 0))
        woken = woken.put(
          i,
          asleep=worker.asleep - {u},
          woken=_set(worker.woken, u, worker.woken[u] + 1),
        )
        yield woken if self.looks else woken.pull(i, u)
    if not worker.left and worker.next is None and worker.queue:
      token, *queue = worker.queue
      yield state.put(i, next=token, holds=_HAS_TOKEN, queue=tuple(queue))
    if worker.past == self.all and worker.next is not None:
      yield state.put(
        i,
        does='step' if worker.pulled >= worker.next % _LIFE else 'wrong',
        token=worker.next,
        left=self.all,
        past=frozenset(),
        woken=Worker.woken,
        pulled=_LIFE,
        next=None,
      )

  def _wrong(self, state, i, worker):
    """It computes with a unit that was not yet at the step of its token."""
    del i, worker
    yield state

  def _update(self, state):
    """The chief's thread."""
    end = state.token + 1
    for u in state.untaken:
      unit = state.units[u]
      if len(unit.givers) >= self.num_workers:
        taken = state.put_unit(
          u,
          step=unit.step + 1,
          givers=(),
          applied=max(unit.applied, end % _LIFE),
          handed=end,
          wakes=(1,) * self.num_workers,
        )
        yield dataclasses.replace(taken, untaken=state.untaken - {u})
    if not state.untaken:
      counted = dataclasses.replace(
        state, step=state.step + 1, untaken=self.all
      )
      yield counted.give_out(range(self.num_workers), end)

  def _dead(self, state, i, worker):
    if i == 0:
      tried = max(state.life, state.tried * self.tries) + 1
      begun = dataclasses.replace(state, tried=tried)
      token = tried * _LIFE + state.step
      yield begun.put(0, does='empty', token=token, left=self.all)
    elif state.workers[0].does == 'prepared':
      pass  # No process begins between two ops of ps 0.
    elif worker.queue:
      token = max(state.token, *worker.queue)
      yield state.put(i, does='looked', token=token, queue=())
    elif worker.holds != _WAITS or all(
      other.holds == _WAITS for other in state.workers
    ):
      yield state.put(i, does='looked', token=state.token)

  def _looked(self, state, i, worker):
    del worker
    yield state.put(i, does='step', holds=_HAS_TOKEN, left=self.all)

  def _empty(self, state, i, worker):
    """A chief that takes over empties the accumulators, ps by ps."""
    for u in worker.left:
      none = (0,) * self.num_workers
      yield state.put_unit(u, step=worker.token, givers=(), notes=none).put(
        i, left=worker.left - {u}
      )
    if not worker.left:
      yield state.put(i, does='note', left=self.all, queue=())

  def _note(self, state, i, worker):
    """It lets all go on that wait with an old token, and begins."""
    for u in worker.left:
      noted = state.put(i, left=worker.left - {u})
      if self.notes:
        wakes = (1,) * self.num_workers
        noted = noted.put_unit(u, handed=worker.token, wakes=wakes)
      yield noted
    if not worker.left:
      given = state.put(i, does='prepared')
      yield given.give_out(range(1, self.num_workers), worker.token)

  def _prepared(self, state, i, worker):
    yield dataclasses.replace(
      state.put(i, does='step', left=self.all, holds=_HAS_TOKEN),
      life=worker.token // _LIFE,
      untaken=self.all,
    )

  def is_wrong(self, state):
    """Whether one counts twice, or computes with what is not yet updated.

    Or is woken more often than it looks.
    """
    return any(
      w.does == 'wrong' or max(w.woken) > _MOST_WAKES for w in state.workers
    ) or any(len({*u.givers}) < len(u.givers) for u in state.units)

  def find_fault(self, num_steps, num_deaths):
    """Returns (a state at fault or None, how many were seen)."""
    return state_search.find_fault(
      self.make_first(),
      self.find_next,
      self.find_deaths,
      self.is_wrong,
      num_steps,
      num_deaths,
    )


@pytest.mark.daily(but=['1-2-3', '2-1-1'])
@pytest.mark.parametrize(
  'num_workers, num_units, num_deaths',
  [
    (2, 1, 1),
    (1, 2, 3),
    # A minute of a core, and five and more of one that others use, too.
    pytest.param(2, 2, 1, marks=pytest.mark.timeout(1200)),
  ],
)
@pytest.mark.slow
def test_whatever_dies_all_units_go_on_and_none_counts_twice(
  num_workers, num_units, num_deaths
):
  fault, num_states = Model(num_workers, num_units).find_fault(2, num_deaths)
  assert fault is None
  assert num_states > 20


@pytest.mark.slow
def test_so_it_is_with_two_deaths():
  fault, num_states = Model(2, 1).find_fault(2, 2)
  assert fault is None
  assert num_states > 10**3


def test_one_that_is_woken_and_does_not_look_computes_with_what_is_old():
  wrong, _ = Model(2, 1, looks=False).find_fault(3, 0)
  assert 'wrong' in [w.does for w in wrong.workers]


@pytest.mark.slow
def test_two_chiefs_that_prepare_the_same_life_leave_one_waiting():
  stall, _ = Model(2, 1, tries=False).find_fault(2, 2)
  assert stall.num_deaths == 2


@pytest.mark.slow
def test_without_a_note_of_its_life_a_chief_leaves_others_waiting():
  stall, _ = Model(2, 2, notes=False).find_fault(2, 1)
  assert stall.num_deaths == 1
  assert stall.workers[1].does == 'step'
