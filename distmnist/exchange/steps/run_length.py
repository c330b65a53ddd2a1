"""The number of steps of a session.run: --steps_per_run, a number or auto.

What a session.run costs beside its steps is worth saving only where a step is
short, and only a measurement says how long it is. So with `auto` a worker makes
its first steps one by one, and then takes as many at a time as took RUN_SECS.
In a run of several, a short step takes down to half the time.

The result of a rule does not depend on it, and neither does what is saved,
shown or traced after a step of a definite number: a run ends there.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from absl import flags

from distmnist.common import cli

if TYPE_CHECKING:
  from distmnist.transport.strategy import RunAgreement


AUTO: Final = 'auto'
_MOST_GIVEN = 1000
# How long the steps of a run take one by one, and the most that it may have.
RUN_SECS = 0.1
MAX_STEPS = 25
# What a worker says that wants runs of one step.
LONG_SECS = 1000.0
# Numbers that divide this fit what is due each 100 steps.
COMMON_PERIOD = 100
# The first steps of a session are slow; then so many are timed.
_NUM_UNTIMED, _NUM_TIMED = 5, 10
# What making and preparing each step of a run takes.
PREPARE_SECS = 0.08


_STEPS_PER_RUN = flags.DEFINE_string(
  'steps_per_run',
  'auto',
  'Training steps in one session.run: more is faster where a step is short. '
  'auto: after the first steps as many as take 100 ms, at most 25; runs end '
  'where a checkpoint, a validation, a summary or a trace is due after some '
  'number of steps. With a number they wait for the end of the run. Each step '
  'is a copy in the graph, so hundreds take minutes to start. The last steps '
  'of a training are run one by one.',
)


class Marks(NamedTuple):
  """After which steps something is due, so that a run ends there.

  Attributes:
    global_periods: what is due at multiples of these global steps.
    local_periods: likewise of the steps of this worker.
    global_per_local: how far all come while this worker makes a step.
    has_traces: whether steps are traced, each in a run of its own.
  """

  global_periods: tuple[int, ...] = ()
  local_periods: tuple[int, ...] = ()
  global_per_local: int = 1
  has_traces: bool = False

  def find_room(self, global_step: int, local_step: int) -> float:
    """Returns how many steps may come before something is due, or math.inf.

    Args:
      global_step, local_step: before them.
    """
    rooms = [period - local_step % period for period in self.local_periods]
    rooms += [
      (period - global_step % period) // self.global_per_local
      for period in self.global_periods
    ]
    return min(rooms, default=math.inf)

  def find_longest(self) -> int:
    """Returns the most steps that a run can have."""
    of_global = [
      max(1, p // self.global_per_local) for p in self.global_periods
    ]
    return min([MAX_STEPS, *self.local_periods, *of_global])


def choose(
  step_secs: float,
  steps_left: float,
  periods: Sequence[int] = (),
  longest: int = MAX_STEPS,
) -> int:
  """Returns how many steps a run is to have.

  Args:
    step_secs: how long a step takes in a run of its own.
    steps_left: the steps that are left to this worker.
    periods: of the exchanges of its rule: runs differ in which are due in them,
      so each is to be a multiple of the run, or to divide it.
    longest: the most.
  """
  # If a call costs half a step, N steps in runs of K take, beside the steps
  # themselves, K * PREPARE_SECS + N / K * step_secs / 2. This K is best:
  best = math.sqrt(steps_left * step_secs / 2 / PREPARE_SECS)
  most = int(min(longest, RUN_SECS / step_secs, best))
  fitting = [
    number
    for number in range(1, most + 1)
    if all(p % number == 0 or number % p == 0 for p in periods)
  ] or [1]
  even = [number for number in fitting if COMMON_PERIOD % number == 0]
  return even[-1] if 2 * even[-1] > fitting[-1] else fitting[-1]


class Pace:
  """The length of a worker's runs, with --steps_per_run=auto.

  In each session the first steps are timed anew: a worker whose runs must be
  those of the others may have others after a loss.

  Attributes:
    length: the steps of a long run; None until it is known.
    secs: how long a step takes, for all workers that make the same runs; 0
      until it is known.
  """

  def __init__(
    self,
    marks: Marks | None = None,
    agreement: RunAgreement | None = None,
    clock: Callable[[], float] = time.monotonic,
    is_stopping: Callable[[], bool] = lambda: False,
  ) -> None:
    """
    Args:
      marks: Marks, or None if nothing is due.
      agreement: where all workers must make the same runs; None where each
        makes its own.
      is_stopping: whether this worker is to end after its next run. The first
        long run takes as long as TensorFlow needs to prepare it, which a stop
        that came meanwhile does not have.
      clock: callable -> float, seconds.
    """
    self._marks = marks or Marks()
    self._local_step = 0
    self._agreement = agreement
    self._clock = clock
    self._is_stopping = is_stopping
    self.begin_session()

  def begin_session(self) -> None:
    self.length: int | None = None
    self._times, self._own_secs = [], 0.0
    self._global_step = 0
    if self._agreement:
      self._agreement.forget()

  @property
  def secs(self) -> float:
    return self._agreement.secs if self._agreement else self._own_secs

  def choose_length(
    self, steps_left: float, periods: Sequence[int]
  ) -> int | None:
    """Chooses and returns `length`, once it is known how long a step takes.

    Args:
      steps_left, periods: see `choose`.
    """
    if self.secs:
      # Where workers agree, what another has due is not known.
      longest = MAX_STEPS if self._agreement else self._marks.find_longest()
      self.length = choose(self.secs, steps_left, periods, longest)
    return self.length

  def is_long(self) -> bool:
    """Whether the next run may have `length` steps."""
    if self._agreement:
      return self._agreement.is_long
    if self._is_stopping():
      return False
    room = self._marks.find_room(self._global_step, self._local_step)
    return self.length is not None and room >= self.length

  def begin_run(self, num_steps: int) -> None:
    """Notes how many steps the run has that begins."""
    if not self._agreement:
      return
    # Where workers agree, each of their steps is a global one.
    room = self._marks.find_room(
      self._global_step + num_steps, self._local_step + num_steps
    )
    self._agreement.vote(
      self._own_secs, self.length is not None and room >= self.length
    )

  def end_run(self, global_step: int, num_steps: int) -> None:
    """Notes the global step after a run, and its number of steps."""
    self._global_step = global_step
    self._local_step += num_steps
    if self._own_secs:
      return
    self._times.append(self._clock())
    if len(self._times) > _NUM_UNTIMED + _NUM_TIMED:
      timed = self._times[_NUM_UNTIMED:]
      # Others are held up, by a save or by a task that starts on this machine.
      secs = min(end - start for start, end in itertools.pairwise(timed))
      self._own_secs = LONG_SECS if self._marks.has_traces else max(secs, 1e-6)


def from_flags() -> int | Literal['auto']:
  """Returns --steps_per_run, an int, or AUTO.

  Raises:
    cli.UsageError: it is neither.
  """
  given = _STEPS_PER_RUN.value
  if given == AUTO:
    return AUTO
  if given.isascii() and given.isdigit() and 1 <= int(given) <= _MOST_GIVEN:
    return int(given)
  raise cli.UsageError(
    f'--steps_per_run={given}: expected {AUTO} or a number from 1 to '
    f'{_MOST_GIVEN}'
  )


def find_lease_unit() -> int:
  """Returns into runs of how many steps leases are best divided."""
  given = from_flags()
  return COMMON_PERIOD if given == AUTO else given
