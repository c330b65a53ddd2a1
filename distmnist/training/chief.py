"""What worker 0 does besides its own steps: validate, wait, save, report."""

import contextlib
import logging
import os
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import stop_request
from distmnist.common.names import CHIEF
from distmnist.logdir import best, checkpoints, history, logdirs, report
from distmnist.logdir import lives as lives_lib
from distmnist.training import (
  evaluation,
  final_model,
  final_report,
  live_evaluation,
)
from distmnist.training.hooks import (
  begin_hook,
  growth_hook,
  stop_hook,
  validation_hook,
)
from distmnist.watching import own_metrics

_log = logging.getLogger(__name__)

_VALIDATION_STEPS = flags.DEFINE_integer(
  'validation_steps',
  0,
  'Global steps from one evaluation on the validation split to the next; '
  '0 means never. Each fetches to worker 0 all that a checkpoint holds.',
  lower_bound=0,
)
_EARLY_STOPPING_PATIENCE = flags.DEFINE_integer(
  'early_stopping_patience',
  0,
  'Stop after this many evaluations without improvement, and report the best '
  'checkpoint; 0 means never. Needs --validation_steps and --logdir.',
  lower_bound=0,
)
_VALIDATE_AT_END = flags.DEFINE_bool(
  'validate_at_end',
  False,
  'Report the accuracy on the validation split too, if there is one: choose '
  'between trainings by it, and keep the test images for the one chosen.',
)
# What the chief does then, to be watched.
WAIT = 'the wait for the others'
END_TIMEOUT_SECS = flags.DEFINE_float(
  'end_timeout_secs',
  30,
  'How long the chief waits for the other workers at the end, in seconds.',
  lower_bound=0,
)


def is_last(plan, path, step, is_of_other_run):
  """Whether the training has ended with a checkpoint, see restart.Restart.

  Args:
    plan: schedule.Plan.
    path, step, is_of_other_run: see `plan.is_last`.
  """
  logdir, patience = logdirs.from_flags(), _EARLY_STOPPING_PATIENCE.value
  if logdir and patience:
    folder = checkpoints.best_dir(logdir)
    if best.count_worse(folder) >= patience:
      return True
  return plan.is_last(path, step, is_of_other_run)


class Chief:
  """Worker 0's hooks during the training and at its end, and its report."""

  def __init__(self, task, choice, variables, judges, folder):
    """
    Args:
      task: task.Task, already serving.
      choice: flag_checks.Choice.
      variables: list of tf.Variable, the center's: weights and averages.
      judges: (validation, test), split.Splits that judge the training.
      folder: run_folder.RunFolder.
    """
    self._task, self._choice = task, choice
    self._folder, self._logdir = folder, folder.path
    validation_split, _ = judges
    self._validation, self._workers = None, []
    self._growth = growth_hook.GrowthHook(folder.summary_dir)
    if _VALIDATION_STEPS.value:
      self._validation = live_evaluation.make_evaluator(
        task, choice, validation_split
      )
    self._global_step = tf.train.get_global_step()
    self._final_step = None
    self._splits = _choose_splits(*judges)
    self._live = live_evaluation.LiveEvaluation(
      task, choice, variables, self._splits
    )

  def hooks(self, steps, scaffold, others, saves):
    """Returns the SessionRunHooks, which must come after the strategy's.

    At the end, once the last step is saved, they wait for the other workers,
    save what these have added, and fetch the center for the evaluation.

    Args:
      steps: fused_steps.Steps.
      scaffold: session.ClusterScaffold.
      others: shutdown.Others.
      saves: save_hook.SaveHook, whose `end` worker_loop.order_hooks calls, too.
    """
    stop = self._task.stop

    def wait(session):
      del session
      self._workers = wait_for_others(self._task, others)

    def take(session):
      if not stop.is_requested:  # After a signal only a checkpoint is written.
        self._final_step = int(session.run(self._global_step))
        self._task.stalls.busy('the evaluation')
        if self._live.has_tables:
          history.record('evaluating')
        self._live.take(session)
        self._task.stalls.busy('the end')

    result = []
    if self._logdir:
      result.append(
        begin_hook.BeginHook(
          self._logdir, self._folder.images, self._choice.problem
        )
      )
    if self._validation:
      self._validation_hook = self._make_validation_hook(
        steps, others, saves.save_early
      )
      result.append(self._validation_hook)
      scaffold.hooks.append(self._validation_hook)
    result += [stop_hook.EndHook(wait), saves, self._growth]
    return [*result, stop_hook.EndHook(take)]

  def _make_validation_hook(self, steps, others, save):
    problem = self._choice.problem
    metric = {'metric': problem.metric, 'sign': problem.sign}
    kept, summary_dir = best.Best(**metric), None
    if self._logdir:
      folder = checkpoints.best_dir(self._logdir)
      kept = best.Best(folder, self._folder.owner.check, **metric)
      summary_dir = os.path.join(self._logdir, 'validation')
    fetch = evaluation.build_fetch()

    def evaluate(session):
      values = fetch(session)
      return values, problem.choose(self._validation.compute(values))

    def end_run(run_context):
      if run_context:
        self._choice.strategy.request_stop(run_context)
      others.stop_all()

    return validation_hook.ValidationHook(
      steps,
      evaluate,
      _VALIDATION_STEPS.value,
      _EARLY_STOPPING_PATIENCE.value,
      kept,
      summary_dir,
      end_run,
      save,
    )

  def report(self, stats, progress, start):
    """Evaluates, prints the last lines and writes report.json.

    By now the session is closed and the cluster released; neither is needed.

    Args:
      stats: report.WorkerStats of this worker.
      progress: progress_hook.ProgressHook.
      start: float, time.monotonic() at the start of this program.
    """
    kept = _EARLY_STOPPING_PATIENCE.value and self._validation_hook.best
    _Outcome(self._task, self._choice, self._folder, self._splits).publish(
      kept,
      self._live.compute,
      self._live,
      [stats, *self._workers],
      {
        'global_step': self._final_step,
        'tables': self._growth.tables,
        'final_cost': progress.final_cost,
        'images_per_sec': progress.images_per_sec(),
        'train_secs': stats.train_secs,
      },
      start,
    )


def report_alone(task, choice, judges, folder, start):
  """Does at the end what a chief did not live to do; its ps have left.

  Args:
    task: task.Task, already serving.
    choice: flag_checks.Choice.
    judges: (validation, test), split.Splits.
    folder: run_folder.RunFolder, claimed, with the last step.
    start: float, time.monotonic() at the start of this program.
  """
  problem, path = choice.problem, folder.restart.find()
  _log.info(
    f'{logdirs.describe_end(folder.path, checkpoints.read_step(path))}, but '
    f'not reported, and its ps have left: {CHIEF} evaluates {path} alone'
  )
  kept = None
  if _EARLY_STOPPING_PATIENCE.value:
    kept = best.Best(
      checkpoints.best_dir(folder.path),
      folder.owner.check,
      metric=problem.metric,
      sign=problem.sign,
    )
  splits = _choose_splits(*judges)

  def evaluate():
    return [
      live_evaluation.make_evaluator(task, choice, split).compute_checkpoint(
        path
      )
      for split in splits
    ]

  # What each worker did is known from its last life.
  lives = sorted(lives_lib.read(folder.path), key=lambda stats: stats.start)
  last = {stats.worker: stats for stats in lives if stats.has_ended}
  own = last.pop(0, report.WorkerStats(0, life=task.watchdog.life))
  _Outcome(task, choice, folder, splits).publish(
    kept,
    evaluate,
    None,
    [own, *last.values()],
    {
      'global_step': checkpoints.read_step(path),
      'tables': {},
      'final_cost': None,
      'images_per_sec': None,
      'train_secs': own.train_secs,
    },
    start,
    path,
  )


class _Outcome:
  """The evaluation of a run, its last lines and its files."""

  def __init__(self, task, choice, folder, splits):
    """
    Args:
      task: task.Task of the chief.
      choice: flag_checks.Choice.
      folder: run_folder.RunFolder.
      splits: list of split.Split, from `_choose_splits`.
    """
    self._task, self._choice = task, choice
    self._logdir, self._splits = folder.path, splits

  def publish(self, kept, evaluate, live, workers, counted, start, path=None):
    """Evaluates, writes the final model and report.json, which comes last.

    Args:
      kept: best.Best of early stopping, or None.
      evaluate: callable, returns the metrics of each split, a list of dict.
      live: live_evaluation.LiveEvaluation with the last values, or None.
      workers: list of report.WorkerStats, of those that were heard from.
      counted: dict, what the chief has counted; see logdir/report.py.
      start: float, time.monotonic() at the start of this program.
      path: str, the checkpoint with the last values; needed without `live`.
    """
    history.record('evaluating')
    problem, validation = self._choice.problem, None
    best_step = None
    if kept:
      kept.forget_removed()
    if kept and kept.path:
      best_step, path = kept.step, kept.path
      validation = {kept.metric: kept.value}
      test = live_evaluation.make_evaluator(
        self._task, self._choice, self._splits[0]
      )
      test = test.compute_checkpoint(path)
    else:
      test, *others = evaluate()
      validation = others[0] if others else None
    self._task.stalls.busy('the report')
    _note_final(
      best_step or counted['global_step'], validation=validation, test=test
    )
    final_model.write(problem, self._logdir, live, path)
    outcome = {
      'best_step': best_step,
      'validation_metrics': validation,
      'validation_accuracy': (validation or {}).get('accuracy'),
      'test_metrics': test,
      'test_accuracy': test.get('accuracy'),
      'test_images': self._splits[0].num_examples,
      'unit': problem.unit,
      'judged_by': problem.judged_by,
      **counted,
      'total_secs': time.monotonic() - start,
    }
    final_report.publish(
      outcome,
      workers,
      self._choice.strategy,
      self._task.cluster.num_workers,
      self._logdir,
    )


def _choose_splits(validation, test):
  """Returns the split.Splits that are evaluated at the end, a list."""
  if _VALIDATE_AT_END.value and validation.num_examples:
    return [test, validation]
  return [test]


def wait_for_others(task, others, get_on=None):
  """Waits at the end for the other workers, or until a stop is requested.

  Args:
    task: task.Task of the chief, already serving.
    others: shutdown.Others.
    get_on: callable, see `others.wait_at_end`; by default --end_timeout_secs
      is the longest wait. Otherwise it tells the task's stalls how that goes.

  Returns:
    list of report.WorkerStats, of the workers that were heard from.
  """
  stop, stalls = task.stop, task.stalls
  secs, found = END_TIMEOUT_SECS.value, []
  if stop.is_requested:  # After a signal only a checkpoint is written.
    return found
  if not get_on:
    stalls.busy(WAIT, own_limit_secs=secs)
  with contextlib.suppress(stop_request.StoppedError):
    found = others.wait_at_end(secs, stop.wait, get_on or (lambda names: False))
  stalls.busy('the end')
  return found


def _note_final(step, **splits):
  """Writes each split's final metrics, unless None, to metrics.jsonl."""
  for split, metrics in splits.items():
    if metrics:
      own_metrics.write(
        'evaluation', split=split, step=step, metrics=metrics, is_final=True
      )
