"""What a session.run runs: one or more training steps, and only what is due.

A session.run costs about as much as a step of a small net: Python, the
session's lock, a message to each ps and back. Two things reduce that cost, and
neither changes what a rule computes:

- With --steps_per_run=K the graph of a step is copied K - 1 times, and each
  copy begins when the step before it has ended. Every step pulls and pushes as
  before, but the hooks (stop, checkpoint, summary) run only after K steps.
  With `auto`, K is chosen once the first steps were timed (run_length.py), and
  only then are the copies made: the first step is as early as without any.
  Where a step ends on a ps, as an asynchronous one does, the next begins there
  without a message to the worker, which gets the metrics of all K at the end.
- A rule that exchanges with the center only every T steps has copies of the
  step without the exchange, which have no op on a ps, except that a learning
  rate that is not constant reads the global_step there. With the exchange in a
  tf.cond, as it is in the step itself, every step costs the messages of one
  that exchanges: the branch not taken sends and receives, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.data import step_rows
from distmnist.exchange import graph_copy
from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.steps import run_length
from distmnist.transport import wire

if TYPE_CHECKING:
  import numpy as np

  from distmnist.exchange.steps.graph_warmup import Warmup


# Runs differ in which exchanges are due in them, and recur in a cycle of steps.
# If it is longer than this, each step checks for itself what is due.
_MAX_CYCLE = 10_000

_log = logging.getLogger(__name__)

# Which of the exchanges are due, for each step of a run.
Due = tuple[tuple[bool, ...], ...]
# (fetches, feed_dict) of a kind of run.
BlankRun = tuple[list[tf.Tensor], dict[tf.Tensor, Any]]


class _Run:
  """What a session.run runs: the steps of `chain`, and their metrics."""

  def __init__(
    self, chain: Sequence[graph_copy.Step], warmup: Warmup | None = None
  ) -> None:
    """
    Args:
      chain: in order.
      warmup: during which the metrics are zeros, or None.
    """
    self.chain = chain
    metrics = [x for step in chain for x in step.tensors.values()]
    metrics += chain[-1].last_step_tensors.values()
    count = chain[-1].count
    self._packed = wire.PackedScalars(
      metrics if count is None else [*metrics, count]
    )
    self.fetches = self._packed.fetches
    if warmup:
      self.fetches = [warmup.or_zeros(x) for x in self.fetches]

  def unpack(
    self, values: Sequence[np.ndarray]
  ) -> tuple[list[dict[str, Any]], int | None]:
    """Returns ([{name: value} of each step], count or None)."""
    metrics = iter(self._packed.unpack(values))
    done = [{name: next(metrics) for name in x.tensors} for x in self.chain]
    done[-1] |= {
      name: next(metrics) for name in self.chain[-1].last_step_tensors
    }
    return done, next(metrics, None)


class Source(Protocol):
  """The number of steps that there may be, and what feeds them."""

  @property
  def left(self) -> float:
    """The steps that the next runs may have in total."""
    ...

  @property
  def until_end(self) -> float:
    """About how many steps are left to this worker in all."""
    ...

  def make_feed(self, num_batches: int) -> dict[tf.Tensor, Any]: ...
  def make_blank_feed(self, num_batches: int) -> dict[tf.Tensor, Any]: ...
  def note(self, global_steps: Sequence[int]) -> None: ...


class _Endless:
  """Stands in for the source of batches where a step needs none."""

  left = until_end = math.inf

  def make_feed(self, num_batches: int) -> dict[tf.Tensor, Any]:
    del num_batches
    return {}

  make_blank_feed = make_feed

  def note(self, global_steps: Sequence[int]) -> None:
    pass


class Steps(tf.train.SessionRunHook):
  """Makes each session.run do what is due, and keeps the results.

  The loop itself asks for nothing: `session.run([])`. `before_run` chooses what
  is due, so a run that a recovered session retries is chosen again. Later hooks
  read here what this one chose and which of the steps' metrics it fetched: all
  those of a run at once, in few tensors.

  Attributes:
    done: {name: value}, the metrics of each step of the last session.run.
    num_local_steps: those of this session, where exchanges depend on them; None
      until a run has counted them.
    own_summary: None; own_step_hook.OwnStepHook has that of a script.
  """

  own_summary = None

  def __init__(
    self,
    tensors: Mapping[str, tf.Tensor],
    num_steps: int = 1,
    source: Source | None = None,
    exchanges: Sequence[periodic_exchange.Exchange] = (),
    last_step_tensors: dict[str, tf.Tensor] | None = None,
    warmup: Warmup | None = None,
    pace: run_length.Pace | None = None,
  ) -> None:
    """
    Args:
      tensors: {name: scalar tensor} of one step; `global_step` is the train_op.
      num_steps: K; 1 with a `pace`.
      source: such as batch_source.BatchSource; None feeds nothing and has no
        end.
      exchanges: list of periodic_exchange.Exchange in the step.
      last_step_tensors: {name: scalar tensor} of one step, which are fetched
        only for the last step of a run.
      warmup: graph_warmup.Warmup of the step, or None.
      pace: chooses K later, or None.
    """
    self.done: list[dict[str, Any]] = []
    self._coord = None
    self._source = source or _Endless()
    self._warmup = warmup
    self._pace = pace
    # What an assignment returns is not yet a tensor, and could not be copied.
    first = graph_copy.Step(
      {n: tf.convert_to_tensor(x) for n, x in tensors.items()},
      last_step_tensors or {},
      exchanges[0].step if exchanges else None,
    )
    self._copier = graph_copy.Copier(first, step_rows.get_all())
    self._exchanges = exchanges
    self._periods = [exchange.period for exchange in exchanges]
    self._num_steps = num_steps
    # By what is due in each step; and, by their number, those of steps that
    # check for themselves what is due.
    self._runs: dict[Due, _Run] = {}
    self._general = {1: self._build_run([()], 'step')}
    self._build_runs(num_steps)
    self.num_local_steps: int | None = None
    self._now = self._general[1]

  def _build_runs(self, num_steps: int) -> list[_Run]:
    """Builds the runs of `num_steps` steps, and of one, that can be due.

    Returns:
      list of _Run, those that were not there before.
    """
    built, kinds = [], self._find_runs(num_steps)
    for due in kinds:
      if due not in self._runs:
        left_out = [
          [
            e
            for e, is_due in zip(self._exchanges, of_step, strict=True)
            if not is_due
          ]
          for of_step in due
        ]
        name = f'run_{len(self._runs) + 1}'
        self._runs[due] = self._build_run(left_out, name)
        built.append(self._runs[due])
    if not kinds and num_steps not in self._general:
      name = 'steps' if self._pace is None else f'steps_{num_steps}'
      self._general[num_steps] = self._build_run([()] * num_steps, name)
      built.append(self._general[num_steps])
    return built

  def _build_run(
    self, left_out: Sequence[Sequence[periodic_exchange.Exchange]], name: str
  ) -> _Run:
    chain = self._copier.build_chain(left_out, name)
    with tf.name_scope(name):
      return _Run(chain, self._warmup)

  def _choose_length(self, pace: run_length.Pace, session: tf.Session) -> None:
    """Chooses K, once it can be known, and builds its runs in the session."""
    length = pace.choose_length(self._source.until_end, self._periods)
    if length is None:
      return
    graph = session.graph
    with graph.as_default(), tf_internals.growing(graph):
      built = self._build_runs(length)
    self._num_steps = length
    if self._warmup:
      self._warmup.run(session, self._make_blank(built))
    if self._num_steps > 1:
      _log.info(
        '%d steps in a session.run from now on, as a step takes %.2f ms '
        '(--steps_per_run=auto)',
        self._num_steps,
        1000 * pace.secs,
      )

  @property
  def last(self) -> dict[str, Any]:
    """The {name: value} of the last step of the last session.run."""
    return self.done[-1]

  def chosen_tensors(self) -> list[dict[str, tf.Tensor]]:
    """Returns the {name: tensor} of each step of the chosen run."""
    return [step.tensors for step in self._now.chain]

  def find_all_runs(self) -> list[BlankRun]:
    """Returns [(fetches, feed_dict)] of each kind of run, fed with zeros."""
    return self._make_blank([*self._general.values(), *self._runs.values()])

  def _make_blank(self, runs: Iterable[_Run]) -> list[BlankRun]:
    """Returns [(fetches, feed_dict)] of these _Runs, fed with zeros."""
    return [
      (run.fetches, self._source.make_blank_feed(len(run.chain)))
      for run in runs
    ]

  def set_position(self, step: int) -> None:
    """Sets the global_step to the current one, which is past the run's."""
    if self.done:
      self.done[-1]['global_step'] = step

  def begin(self) -> None:
    if self._warmup:
      self._warmup.build()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    if self._warmup:
      self._warmup.run(session, self.find_all_runs())
    # The worker's own count starts over with each session.
    self.num_local_steps = None
    self._coord = coord
    if self._pace:
      self._num_steps = 1
      self._pace.begin_session()

  def before_run(
    self, run_context: tf.train.SessionRunContext
  ) -> tf.train.SessionRunArgs:
    # A recovered session runs what was lost, also if nothing is left to do.
    if self._coord and self._coord.should_stop():
      raise tf.errors.OutOfRangeError(None, None, 'the training has ended')
    if self._pace and self._pace.length is None:
      self._choose_length(self._pace, run_context.session)
    if self._warmup:
      self._warmup.pull_anew(run_context.session)
    self._now = self._choose()
    if self._pace:
      self._pace.begin_run(len(self._now.chain))
    feed = self._source.make_feed(len(self._now.chain))
    return tf.train.SessionRunArgs(self._now.fetches, feed)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self.done, self.num_local_steps = self._now.unpack(run_values.results)
    self._source.note([step['global_step'] for step in self.done])
    if self._pace:
      self._pace.end_run(self.last['global_step'], len(self.done))

  def _choose(self) -> _Run:
    """Returns the _Run that is due."""
    is_long = self._source.left >= self._num_steps
    if self._num_steps > 1 and self._pace:
      is_long = is_long and self._pace.is_long()
    num_steps = self._num_steps if is_long else 1
    if self._periods and (self.num_local_steps or 0) % num_steps:
      num_steps = 1  # Until a run of K can begin.
    if self._runs:
      # Without a known count the step itself finds out what is due.
      if self.num_local_steps is None:
        num_steps = 1
      else:
        due = self._find_due(self.num_local_steps, num_steps)
        if due in self._runs:
          return self._runs[due]
    return self._general[num_steps]

  def _find_due(self, count: int, num_steps: int) -> Due:
    """Returns, for each step after `count` steps, which exchanges are due."""
    return tuple(
      tuple(number % period == 0 for period in self._periods)
      for number in range(count + 1, count + 1 + num_steps)
    )

  def _find_runs(self, num_steps: int) -> list[Due]:
    """Returns what can be due in a run of one step or of K, a sorted list."""
    cycle = math.lcm(num_steps, *self._periods)
    if not self._periods or cycle > _MAX_CYCLE:
      return []
    return sorted(
      {
        self._find_due(count, length)
        for length in {1, num_steps}
        for count in range(0, cycle, length)
      }
    )


def make(
  tensors: Mapping[str, tf.Tensor],
  source: Source | None,
  last_step_tensors: dict[str, tf.Tensor],
  warmup: Warmup | None,
  pace: run_length.Pace | None = None,
) -> Steps:
  """Returns the Steps that --steps_per_run asks for, in the default graph.

  Args:
    tensors, source, last_step_tensors, warmup: see Steps.
    pace: for `auto`, or None for single steps.
  """
  given = run_length.from_flags()
  is_auto = given == run_length.AUTO
  return Steps(
    tensors,
    1 if is_auto else given,
    source,
    periodic_exchange.get_all(),
    last_step_tensors,
    warmup,
    pace if is_auto else None,
  )
