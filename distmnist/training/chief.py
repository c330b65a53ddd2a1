"""What worker 0 does besides its own steps: validate, save, report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import layout
from distmnist.common.names import CHIEF, SPLITS
from distmnist.logdir import best, checkpoints, logdirs
from distmnist.nn import plateau
from distmnist.training import (
  evaluation,
  final_model,
  final_report,
  live_evaluation,
  run_folder,
  schedule,
)
from distmnist.training.hooks import growth, validation
from distmnist.transport import strategy

if TYPE_CHECKING:
  import numpy as np

  from distmnist.exchange.steps import fused_steps
  from distmnist.lifecycle import shutdown
  from distmnist.lifecycle import task as task_lib
  from distmnist.logdir import report
  from distmnist.training import flag_checks
  from distmnist.training.hooks import progress as progress_lib
  from distmnist.training.hooks import save_hook
  from distmnist.training.problems import problem as problem_lib
  from distmnist.training.problems import problem_data

_log = logging.getLogger(__name__)

_VALIDATION_STEPS = flags.DEFINE_integer(
  'validation_steps',
  0,
  'Evaluations on the validation split at multiples of this many global '
  'steps; -1 means once an epoch, and 0 never, or once an epoch with '
  '--early_stopping_patience. Each fetches to worker 0 all that a checkpoint '
  'holds.',
  lower_bound=-1,
)
_EARLY_STOPPING_PATIENCE = flags.DEFINE_integer(
  'early_stopping_patience',
  0,
  'Stop after this many evaluations without improvement, and report the best '
  'checkpoint; 0 means never. Needs --logdir; see --validation_steps.',
  lower_bound=0,
)


def validates() -> bool:
  """Whether there are evaluations in the course of the training."""
  return bool(_VALIDATION_STEPS.value or _EARLY_STOPPING_PATIENCE.value)


def _judges_best() -> bool:
  """Whether the end is that of the best checkpoint, and not of the last step.

  Without a log directory there is no such checkpoint.
  """
  is_asked = _EARLY_STOPPING_PATIENCE.value or flags.FLAGS.best
  return bool(is_asked and validates())


def find_period(plan: schedule.Plan) -> int:
  """Returns the global steps from one evaluation to the next; 0 for none.

  An epoch that is no whole number of steps is cut, so that each has one.
  """
  if not validates():
    return 0
  steps = _VALIDATION_STEPS.value
  if steps > 0:
    return steps
  return max(1, plan.images_per_epoch // plan.images_per_update)


def is_last(
  choice: flag_checks.Choice, path: str, step: int, is_of_other_run: bool
) -> bool:
  """Whether the training has ended with a checkpoint, see restart.Restart.

  Args:
    path, step, is_of_other_run: see schedule.Plan.is_last.
  """
  logdir, patience = logdirs.from_flags(), _EARLY_STOPPING_PATIENCE.value
  if logdir and patience:
    folder = checkpoints.best_dir(logdir)
    if best.count_worse(folder, choice.problem.metric) >= patience:
      return True
  return choice.plan.is_last(path, step, is_of_other_run)


class Chief(strategy.CenterHook):
  """Worker 0's part after each of its steps, and its report at the end.

  The run is recorded, evaluated if it is time to, and then saved: an evaluation
  may end the training, and what it has found is in the log directory by then.
  """

  def __init__(
    self,
    task: task_lib.Task,
    choice: flag_checks.Choice,
    variables: Sequence[tf.Variable],
    judges: Mapping[str, problem_data.Examples],
    folder: run_folder.RunFolder,
    steps: fused_steps.Steps,
    others: shutdown.Others,
    saves: save_hook.SaveHook,
  ) -> None:
    """
    Args:
      task: already serving.
      variables: the center's: weights and averages.
      judges: {name: split.Split}, on what the training is judged, see
        problem_data.load_judges.
    """
    self._saves = saves
    self._task, self._choice, self._others = task, choice, others
    self._train_secs = schedule.secs_from_flags()
    self._start: float | None = None
    self._is_time_over = False
    self._folder, self._logdir = folder, folder.path
    self._first_step = run_folder.FirstStep(
      *(folder.path, folder.images, choice.problem),
      lambda: self._session_step,
    )
    self._growth = growth.Growth(folder.summary_dir)
    self._validation: validation.Validation | None = None
    if validates():
      self._evaluator = live_evaluation.make_evaluator(
        task, choice, judges['validation']
      )
      self._validation = self._make_validation(steps)
    self._global_step = tf.train.get_global_step()
    self._session_step = self._final_step = 0
    self._judges = judges
    self._live = live_evaluation.LiveEvaluation(task, choice, variables, judges)

  def begin(self) -> None:
    self._growth.build()
    if self._validation:
      self._validation.begin()

  def on_new_center(self, session: tf.Session) -> None:
    if self._validation:
      self._validation.on_new_center(session)

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    if self._validation:
      self._validation.after_create_session(session, coord)
    self._saves.after_create_session(session, coord)
    self._growth.begin_session()  # The worker's summaries say from where.
    self._session_step = int(session.run(self._global_step))

  def before_run(self, run_context: tf.train.SessionRunContext) -> None:
    self._first_step.before_run(run_context)
    if self._validation:
      self._validation.before_run(run_context)

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    self._first_step.after_run(run_context, run_values)
    if self._validation:
      self._validation.after_run(run_context, run_values)
    if self._train_secs:
      self._end_if_time_is_over(self._train_secs, run_context)
    self._saves.after_run(run_context, run_values)
    self._growth.look_if_due(run_context.session)

  def _end_if_time_is_over(
    self, train_secs: float, run_context: tf.train.SessionRunContext
  ) -> None:
    now = time.monotonic()
    # The first step sets up the graph on the devices.
    self._start = self._start or now
    if now - self._start >= train_secs and not self._is_time_over:
      # A rule may need further steps until all agree to end.
      self._is_time_over = True
      _log.info(f'the {train_secs:g} s of --train_secs are over')
      self._end_run(run_context)

  def _end_run(self, run_context: tf.train.SessionRunContext | None) -> None:
    """Ends the loops of all workers; see validation.Validation."""
    if run_context:
      self._choice.strategy.request_stop(run_context)
    self._others.stop_all()

  def read_last(self, session: tf.Session) -> None:
    """Fetches what `report` needs, once all is trained and saved."""
    self._growth.look(session)
    if self._task.stop.is_requested:
      return  # After a signal only a checkpoint is written.
    self._final_step = int(session.run(self._global_step))
    self._task.stalls.busy('the evaluation')
    if self._live.has_tables:
      self._task.history.write('evaluating')
    self._live.take(session)
    self._task.stalls.busy('the end')

  def _make_validation(self, steps: fused_steps.Steps) -> validation.Validation:
    problem = self._choice.problem
    summary_dir = self._logdir and layout.metrics_dir(
      self._logdir, 'validation'
    )
    fetch = evaluation.build_fetch()

    def evaluate(
      session: tf.Session,
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
      values = fetch(session)
      metrics = self._evaluator.compute(values)
      problem.check_best(metrics)
      return values, metrics

    return validation.Validation(
      steps,
      evaluate,
      find_period(self._choice.plan),
      _EARLY_STOPPING_PATIENCE.value,
      _open_best(problem, self._folder),
      summary_dir,
      self._end_run,
      self._saves.save_early,
      self._task.history,
      self._task.metrics,
      plateau.find(),
    )

  def report(
    self,
    stats: report.WorkerStats,
    workers: Sequence[report.WorkerStats],
    progress: progress_lib.Progress,
    start: float,
  ) -> None:
    """Evaluates, prints the last lines and writes report.json.

    By now the session is closed and the cluster released; neither is needed.

    Args:
      stats: report.WorkerStats of this worker.
      workers: of the others that were heard from.
      start: time.monotonic() at the start of this program.
    """
    validated = self._validation
    kept = validated.best if validated and _judges_best() else None
    known, of_step = {}, validated and validated.last
    if of_step and of_step[0] == self._final_step:
      known = {'validation': of_step[1]}
    judged = _judge(
      *(self._task, self._choice, self._judges, kept),
      *(self._live.compute, (self._final_step, known)),
    )
    counted = {
      'early_stop_step': validated and validated.stop_step,
      'global_step': self._final_step,
      'tables': self._growth.tables,
      'final_loss': progress.final_loss,
      'train_secs': stats.train_secs,
    }
    problem = self._choice.problem
    final_model.write(problem, self._logdir, judged.path or self._live)
    _write_report(
      *(self._task, self._choice, self._folder, judged),
      *([stats, *workers], counted, start),
    )


def _open_best(
  problem: problem_lib.Problem, folder: run_folder.RunFolder
) -> best.Best:
  """Returns the best.Best of a run_folder.RunFolder, which may have no path."""
  metric = {'metric': problem.metric, 'sign': problem.sign}
  if not (owner := folder.owner):
    return best.Best(**metric)
  return best.Best(checkpoints.best_dir(owner.folder), owner.check, **metric)


def report_alone(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  judges: Mapping[str, problem_data.Examples],
  folder: run_folder.RunFolder,
  unreported: tuple[str, str],
  start: float,
) -> None:
  """Does at the end what a chief did not live to do; the others have left.

  Args:
    task: already serving.
    judges: {name: split.Split}, see problem_data.load_judges.
    folder: claimed.
    unreported: from its `find_unreported`.
    start: time.monotonic() at the start of this program.
  """
  problem = choice.problem
  logdir, path = unreported
  last_step = checkpoints.read_step(path)
  _log.info(
    f'{logdirs.describe_end(logdir, last_step)}, but not reported, and '
    f'the others have left: {CHIEF} evaluates {path} alone'
  )
  kept = None
  if _judges_best():
    kept = _open_best(problem, folder)
  evaluate = _make_evaluate(task, choice, judges, path)
  judged = _judge(task, choice, judges, kept, evaluate, (last_step, {}))
  final_model.write(problem, logdir, judged.path or path)
  workers = final_report.read_workers(logdir, task.watchdog.life)
  counted = {
    'early_stop_step': None,
    'global_step': last_step,
    'tables': {},
    'final_loss': None,
    'train_secs': workers[0].train_secs,
  }
  _write_report(task, choice, folder, judged, workers, counted, start)


def _make_evaluate(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  judges: Mapping[str, problem_data.Examples],
  path: str,
) -> Callable[[list[str]], dict[str, dict[str, float]]]:
  """Returns the `evaluate` of `_judge` for a checkpoint."""

  def evaluate(splits: list[str]) -> dict[str, dict[str, float]]:
    return {
      name: live_evaluation.make_evaluator(
        task, choice, judges[name]
      ).compute_checkpoint(path)
      for name in splits
    }

  return evaluate


class _Judgement(NamedTuple):
  """The metrics of a training, at its end.

  Attributes:
    metrics: {split: {name: float}}.
    best_step: the step of the best checkpoint, if it is what was judged.
    path: that checkpoint.
    num_test_examples: of the test split.
  """

  metrics: dict[str, dict[str, float]]
  best_step: int | None
  path: str | None
  num_test_examples: int | None


def _judge(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  judges: Mapping[str, problem_data.Examples],
  kept: best.Best | None,
  evaluate: Callable[[list[str]], dict[str, dict[str, float]]],
  last: tuple[int, dict[str, dict[str, float]]],
) -> _Judgement:
  """Evaluates the best checkpoint, else the last step; returns a _Judgement.

  Args:
    judges: {name: split.Split}, see problem_data.load_judges.
    kept: None unless its checkpoint is to be judged.
    evaluate: names of splits -> {name: metrics} of the last step.
    last: (step, {split: metrics}), the last step, and what is known of it.
  """
  task.history.write('evaluating')
  path, (step, known) = None, last
  if kept:
    kept.forget_removed()
  if kept and kept.path:
    path, step, known = kept.path, kept.step, {'validation': kept.metrics}
    evaluate = _make_evaluate(task, choice, judges, path)
  found = evaluate([name for name in judges if name not in known])
  task.stalls.busy('the report')
  # What is known is a point of a curve already.
  for split, metrics in (known | found).items():
    task.metrics.write(
      'evaluation',
      split=split,
      step=step,
      metrics=metrics,
      is_final=split in found,
    )
  test = judges.get('test')
  return _Judgement(
    known | found,
    step if path else None,
    path,
    test.num_examples if test else None,
  )


def _write_report(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  folder: run_folder.RunFolder,
  judged: _Judgement,
  workers: Sequence[report.WorkerStats],
  counted: Mapping[str, Any],
  start: float,
) -> None:
  """Prints the last lines and writes report.json, which comes last.

  Args:
    task, choice, folder: see `report_alone`.
    judged: _Judgement.
    workers: of those that were heard from.
    counted: what the chief has counted; see logdir/report.py.
    start: time.monotonic() at the start of this program.
  """
  problem = choice.problem
  outcome = {
    'best_step': judged.best_step,
    **{f'{split}_metrics': judged.metrics.get(split) for split in SPLITS},
    **{
      f'{split}_accuracy': judged.metrics.get(split, {}).get('accuracy')
      for split in SPLITS
    },
    'test_examples': judged.num_test_examples,
    'unit': problem.unit,
    'judged_by': problem.judged_by,
    **counted,
    'total_secs': time.monotonic() - start,
  }
  final_report.publish(
    outcome, workers, choice.strategy, task.cluster.num_workers, folder.path
  )
