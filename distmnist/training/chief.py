"""What worker 0 does besides its own steps: validate, wait, save, report."""

import os
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.logdir import best, checkpoints, history
from distmnist.training import (
  evaluation,
  final_model,
  final_report,
  live_evaluation,
)
from distmnist.training.hooks import (
  begin_hook,
  growth_hook,
  save_hook,
  stop_hook,
  validation_hook,
)
from distmnist.watching import own_metrics

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
END_TIMEOUT_SECS = flags.DEFINE_float(
  'end_timeout_secs',
  30,
  'How long the chief waits for the other workers at the end, in seconds.',
  lower_bound=0,
)


def check_flags(logdir, num_validation_images):
  """Checks the flags above.

  Raises:
    cli.UsageError: they contradict each other.
  """
  if _VALIDATION_STEPS.value and not num_validation_images:
    raise cli.UsageError('--validation_steps needs --validation_images > 0')
  if _EARLY_STOPPING_PATIENCE.value:
    if not _VALIDATION_STEPS.value:
      raise cli.UsageError(
        '--early_stopping_patience needs --validation_steps: how often to look'
      )
    if not logdir:
      raise cli.UsageError(
        '--early_stopping_patience needs --logdir: the best checkpoint is kept '
        'there'
      )


class Chief:
  """Worker 0's hooks during the training and at its end, and its report.

  Attributes:
    save: callable(session), saves the current step; set by `hooks`.
  """

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
    validation_split, self._test_split = judges
    self._validation, self._workers = None, []
    self._growth = growth_hook.GrowthHook(folder.summary_dir)
    if _VALIDATION_STEPS.value:
      self._validation = live_evaluation.make_evaluator(
        task, choice, validation_split
      )
    self._global_step = tf.train.get_global_step()
    self._final_step = self._best_path = None
    judged = [self._test_split]
    if _VALIDATE_AT_END.value and validation_split.num_examples:
      judged.append(validation_split)
    self._live = live_evaluation.LiveEvaluation(task, choice, variables, judged)

  def hooks(self, steps, scaffold, others):
    """Returns the SessionRunHooks, which must come after the strategy's.

    At the end they wait for the other workers, then fetch the center for the
    evaluation, then save it.

    Args:
      steps: fused_steps.Steps.
      scaffold: session.ClusterScaffold, whose saver is used.
      others: shutdown.Others.
    """
    stop = self._task.stop

    def at_end(session):
      if not stop.is_requested:  # After a signal only a checkpoint is written.
        stalls = self._task.watchdog.stalls
        secs = END_TIMEOUT_SECS.value
        stalls.busy('the wait for the others', own_limit_secs=secs)
        self._workers = others.wait_at_end(secs)
        stalls.busy('the end')
        self._live.take(session)
        self._final_step = int(session.run(self._global_step))

    result = []
    if self._logdir:
      result.append(
        begin_hook.BeginHook(
          self._logdir, self._folder.images, self._choice.problem
        )
      )
    if self._validation:
      self._validation_hook = self._make_validation_hook(steps, others)
      result.append(self._validation_hook)
      scaffold.hooks.append(self._validation_hook)
    result.append(stop_hook.EndHook(at_end))
    saves = save_hook.make(self._task, self._folder, steps, scaffold, others)
    self.save = saves.end
    return [*result, self._growth, saves]

  def _make_validation_hook(self, steps, others):
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
    )

  def _evaluate(self):
    """Returns (best step, validation metrics, test metrics)."""
    kept = _EARLY_STOPPING_PATIENCE.value and self._validation_hook.best
    if kept:
      kept.forget_removed()
    if kept and kept.path:
      self._best_path = kept.path
      metrics = {kept.metric: kept.value}
      test = live_evaluation.make_evaluator(
        self._task, self._choice, self._test_split
      )
      return kept.step, metrics, test.compute_checkpoint(kept.path)
    test, *others = self._live.compute()
    return None, others[0] if others else None, test

  def report(self, stats, progress, start):
    """Evaluates, prints the last lines and writes report.json.

    By now the session is closed and the cluster released; neither is needed.

    Args:
      stats: report.WorkerStats of this worker.
      progress: progress_hook.ProgressHook.
      start: float, time.monotonic() at the start of this program.
    """
    history.record('evaluating')
    best_step, validation, test = self._evaluate()
    self._task.watchdog.stalls.busy('the report')
    _note_final(best_step or self._final_step, validation=validation, test=test)
    outcome = {
      'best_step': best_step,
      'validation_metrics': validation,
      'validation_accuracy': (validation or {}).get('accuracy'),
      'test_metrics': test,
      'test_accuracy': test.get('accuracy'),
      'test_images': self._test_split.num_examples,
      'unit': self._choice.problem.unit,
      'judged_by': self._choice.problem.judged_by,
      'global_step': self._final_step,
      'tables': self._growth.tables,
      'final_cost': progress.final_cost,
      'images_per_sec': progress.images_per_sec(),
      'train_secs': stats.train_secs,
      'total_secs': time.monotonic() - start,
    }
    final_report.publish(
      outcome,
      [stats, *self._workers],
      self._choice.strategy,
      self._task.cluster.num_workers,
      self._logdir,
    )
    final_model.write(
      self._choice.problem, self._logdir, self._live, self._best_path
    )


def _note_final(step, **splits):
  """Writes each split's final metrics, unless None, to metrics.jsonl."""
  for split, metrics in splits.items():
    if metrics:
      own_metrics.write(
        'evaluation', split=split, step=step, metrics=metrics, is_final=True
      )
