"""Evaluations by the chief, which cut the rate and end the training early."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.logdir import history as history_lib
from distmnist.logdir import saving
from distmnist.logdir.report_text import format_metric, format_metrics
from distmnist.training.telemetry import summaries
from distmnist.watching import own_metrics

if TYPE_CHECKING:
  import numpy as np

  from distmnist.exchange.steps import fused_steps
  from distmnist.logdir import best as best_lib
  from distmnist.nn import plateau as plateau_lib

_log = logging.getLogger(__name__)


class Validation:
  """Keeps the best checkpoint; cuts the rate and stops where none is better.

  At multiples of `every_steps` global steps it fetches the center, with all
  that a checkpoint holds, and computes the validation metrics from that while
  the other workers go on. If it is the best so far, what was fetched is kept.

  A training that it has ended makes no step when it is started again.

  Attributes:
    last: (step, metrics), the last evaluation of this life; None before it.
    stop_step: where it has ended the training.
  """

  def __init__(
    self,
    steps: fused_steps.Steps,
    evaluate: Callable[
      [tf.Session], tuple[dict[str, np.ndarray], dict[str, float]]
    ],
    every_steps: int,
    patience: int,
    best: best_lib.Best,
    summary_dir: str | None,
    end_run: Callable[[tf.train.SessionRunContext | None], None],
    save: Callable[[tf.Session], None] = lambda session: None,
    history: history_lib.History | None = None,
    metrics: own_metrics.OwnMetrics | None = None,
    plateau: plateau_lib.Plateau | None = None,
  ) -> None:
    """
    Args:
      steps: with the `global_step` after each.
      evaluate: session -> ({name: array}, all that a checkpoint holds; {name:
        float}, its metrics on the validation split).
      every_steps: global steps.
      patience: evaluations without improvement after which training ends; 0
        never ends it.
      summary_dir: the folder for events.
      end_run: ends the loops of all workers; without a
        run_context before the first step of any.
      save: saves before an evaluation of the last step,
        which may fail or take long.
      plateau: plateau.Plateau of the default graph, for --lr_schedule=plateau.
    """
    self._steps = steps
    self._evaluate_now = evaluate
    self._every_steps = every_steps
    self._patience = patience
    self._summary_dir = summary_dir
    self._end_run = end_run
    self._save = save
    self._history = history or history_lib.History()
    self._metrics = metrics or own_metrics.OwnMetrics()
    self._plateau = plateau
    self._cut = self._is_untold = None
    self._num_cuts = 0
    self._next_step = 0
    self._has_stopped = False
    self._is_new_center = False
    self._begun_step: int | None = None  # Of a session without a step yet.
    self.best = best
    self.last: tuple[int, dict[str, float]] | None = None
    self.stop_step: int | None = None

  def begin(self) -> None:
    self._global_step = tf.train.get_global_step()
    self._writer = None
    if self._summary_dir:
      self._writer = summaries.Writer(self._summary_dir)
    if self._plateau:
      self._cut = self._plateau.build_cut()
      self._is_untold = self._plateau.build_is_untold()

  def on_new_center(self, session: tf.Session) -> None:
    self._is_new_center = True
    if self._is_over:
      self._end_run(None)  # No other worker has seen this center yet.

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    # A live center may have workers in a step, who wait for one of ours.
    self._has_stopped = self._is_new_center and self._is_over
    self._is_new_center = False
    self._begun_step = step = int(session.run(self._global_step))
    if self._writer:
      self._writer.begin_session(step)
    if self._plateau:
      self._num_cuts = int(session.run(self._plateau.variable)[0])
    # Also a center that is taken over may have been set back.
    next_step = self._find_next_step(step)
    self._next_step = min(next_step, self._next_step or next_step)
    if not self._is_over:
      self.best.go_back_to(step)
    if self._has_stopped:
      self._say_why(step)
      coord.request_stop()

  def before_run(self, run_context: tf.train.SessionRunContext) -> None:
    step, self._begun_step = self._begun_step, None
    # What an earlier life has judged is cut where that life would have done it.
    if step is not None:
      self._cut_if_due(run_context.session, step)

  @property
  def _is_over(self) -> bool:
    return bool(self._patience and self.best.num_worse >= self._patience)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    step = self._steps.last['global_step']
    if step >= self._next_step:
      self._next_step = self._find_next_step(step)
      if run_context.stop_requested:
        self._save(run_context.session)
      # Others may have gone on during the evaluation.
      step = max(step, self._evaluate(run_context.session))
    # Not only after an evaluation: an earlier life may have made the last one.
    if self._is_over and not self._has_stopped:
      self._has_stopped = True
      self._say_why(step)
      self._end_run(run_context)
    elif not run_context.stop_requested:
      # Else no step follows: who goes on from here cuts before its first.
      self._cut_if_due(run_context.session, step)

  def _find_next_step(self, step: int) -> int:
    return step + self._every_steps - step % self._every_steps

  def _cut_if_due(self, session: tf.Session, step: int) -> None:
    """Makes a cut that follows from evaluations up to `step`, one at a time.

    Those beyond it, from before the training was set back, are made again.
    """
    plateau = self._plateau
    if not plateau or self._has_stopped:
      return
    if not self.best.has_cut(self._num_cuts, step):
      return
    if session.run(self._is_untold):
      return  # The others would take two for one.
    self._num_cuts, cut_step = map(int, session.run(self._cut))
    reason = self._describe_worse()
    if self.best.num_worse < plateau.patience:
      reason = 'as it was before the training was set back'
    _log.info(
      f'step {cut_step}: the learning rate is {plateau.factor:g} '
      f'times what it was from the next step on (cut {self._num_cuts}): '
      f'{reason}'
    )

  def _say_why(self, step: int) -> None:
    self.stop_step = step
    _log.info(f'early stopping at step {step}: {self._describe_worse()}')

  def _describe_worse(self) -> str:
    than = 'none of which gave a number'
    if (value := self.best.value) is not None:
      than = (
        f'without a better one than {format_metric(value)} at step '
        f'{self.best.step}'
      )
    many = 's' if self.best.num_worse > 1 else ''
    return f'{self.best.num_worse} evaluation{many} {than}'

  def _evaluate(self, session: tf.Session) -> int:
    self._history.write('validating')
    values, metrics = self._evaluate_now(session)
    value, found = metrics[self.best.metric], format_metrics(metrics)
    # Other workers may have gone on since their own step was seen.
    step = int(values['global_step'])
    self.last = step, metrics
    self._history.write('evaluated', step=step, value=value)
    self._metrics.write(
      'evaluation', split='validation', step=step, metrics=metrics
    )
    try:
      patience = self._plateau.patience if self._plateau else 0
      is_best = self.best.note(values, step, metrics, patience, self._num_cuts)
    except saving.SaveError as error:
      _log.info(
        f'step {step}: validation {found} is not taken into account: {error}; '
        'the training goes on'
      )
      return step
    self._history.write('noted', step=step, value=value)
    if self._writer:
      self._writer.write_scalars(metrics, step)
    best_mark = ' (best so far)' if is_best else ''
    _log.info(f'step {step}: validation {found}{best_mark}')
    return step
