"""What worker 0 does beside its own steps: validate, wait, save, report."""

import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import accuracy, checkpoints, cli, hooks, report, workload

_SAVE_SECS = flags.DEFINE_float(
  'save_secs', 60, 'Seconds from one checkpoint to the next.', lower_bound=0.1
)
_SAVE_STEPS = flags.DEFINE_integer(
  'save_steps',
  None,
  'Global steps from one checkpoint to the next, beside --save_secs.',
  lower_bound=1,
)
_VALIDATION_STEPS = flags.DEFINE_integer(
  'validation_steps',
  0,
  'Global steps from one evaluation on the validation split to the next; 0 is '
  'never.',
  lower_bound=0,
)
_EARLY_STOPPING_PATIENCE = flags.DEFINE_integer(
  'early_stopping_patience',
  0,
  'End after so many evaluations without a better one, and report the best '
  'checkpoint; 0 is never. Needs --validation_steps and --logdir.',
  lower_bound=0,
)
_VALIDATE_AT_END = flags.DEFINE_bool(
  'validate_at_end',
  False,
  'Report the accuracy on the validation split too, if there is one: what to '
  'choose a training by, as the test images are for the one that was chosen.',
)
_END_TIMEOUT_SECS = flags.DEFINE_float(
  'end_timeout_secs',
  30,
  'How long the chief waits for the other workers at the end, in seconds.',
  lower_bound=0,
)


def check_flags(logdir, num_validation_images):
  """Checks the flags above.

  Raises:
    cli.UsageError: they do not fit each other.
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
  """Worker 0's hooks for the end and the way there, and its report."""

  def __init__(self, build_model, variables, validation_split, logdir, config):
    """
    Args:
      build_model: build(images, is_training) -> logits.
      variables: list of tf.Variable, the model's in the center.
      validation_split: workload.Split.
      logdir: str or None.
      config: tf.ConfigProto for evaluations, on this machine alone.
    """
    self._build_model = build_model
    self._variables = variables
    self._logdir = logdir
    self._config = config
    self._test_split = workload.load_test_split()
    self._validation_split = validation_split
    self._validation = None
    if _VALIDATION_STEPS.value:
      self._validation = accuracy.Evaluator(
        build_model, validation_split, config
      )
    self._global_step = tf.train.get_global_step()
    self._workers = []
    self._values = None
    self._final_step = None

  def hooks(self, steps, scaffold, others, strategy, stop, say):
    """Returns the SessionRunHooks, to come after the strategy's.

    At the end the other workers are waited for, then the center is fetched
    for the evaluation, then saved.

    Args:
      steps: steps.Steps.
      scaffold: tf.train.Scaffold, whose saver saves.
      others: session.Others.
      strategy: strategy.Strategy, which decides how a loop is ended.
      stop: preemption.StopRequest; after a signal there is only a checkpoint.
      say: callable that prints a line.
    """

    def at_end(session):
      if not stop.is_requested:
        self._workers = others.wait_at_end(_END_TIMEOUT_SECS.value, say)
        self._values = checkpoints.fetch_whole(session, self._variables)
        self._final_step = int(session.run(self._global_step))

    def validate(session):
      values = checkpoints.fetch_whole(session, self._variables)
      return self._validation.compute(values)

    result = []
    if self._validation:
      self._validation_hook = hooks.ValidationHook(
        steps,
        validate,
        _VALIDATION_STEPS.value,
        _EARLY_STOPPING_PATIENCE.value,
        self._logdir,
        others.stop_all,
        say,
        strategy.request_stop,
      )
      result.append(self._validation_hook)
    result.append(hooks.EndHook(at_end))
    result.append(
      hooks.SaveHook(
        steps,
        self._global_step,
        scaffold.saver,
        self._logdir,
        _SAVE_SECS.value,
        _SAVE_STEPS.value,
        others,
      )
    )
    return result

  def report(
    self, stats, progress, stop_hook, strategy, num_workers, start, say
  ):
    """Evaluates, prints the last lines and writes report.json.

    The session is closed and the cluster let go: this needs neither.

    Args:
      stats: report.WorkerStats of this worker.
      progress: hooks.ProgressHook.
      stop_hook: hooks.StopHook.
      strategy: strategy.Strategy.
      num_workers: int, of the cluster.
      start: float, time.monotonic() at the start of this program.
      say: callable that prints a line.
    """
    test = accuracy.Evaluator(self._build_model, self._test_split, self._config)
    outcome = {'best_step': None, 'validation_accuracy': None}
    if _EARLY_STOPPING_PATIENCE.value and self._validation_hook.best_step:
      best = checkpoints.find_latest(checkpoints.best_dir(self._logdir))
      outcome = {
        'test_accuracy': test.compute_checkpoint(best),
        'best_step': self._validation_hook.best_step,
        'validation_accuracy': self._validation_hook.best_accuracy,
      }
    else:
      outcome['test_accuracy'] = test.compute(self._values)
      if _VALIDATE_AT_END.value and len(self._validation_split.images):
        outcome['validation_accuracy'] = accuracy.Evaluator(
          self._build_model, self._validation_split, self._config
        ).compute(self._values)
    workers = sorted([stats, *self._workers], key=lambda w: w.worker)
    heard_of = {w.worker for w in workers}
    outcome |= {
      'test_images': len(self._test_split.images),
      'global_step': self._final_step,
      'recoveries': stop_hook.num_recoveries,
      'steps_lost': stop_hook.steps_lost,
      'final_cost': progress.final_cost,
      'images_per_sec': progress.images_per_sec(),
      'train_secs': stats.train_secs,
      'total_secs': time.monotonic() - start,
      'workers_not_heard_of': sorted(set(range(num_workers)) - heard_of),
    }
    settings = {
      'flags': {
        flag.name: flag.value
        for flag in checkpoints.our_flags()
        if flag.value is not None
      }
    }
    whole = report.compose(settings, outcome, workers, strategy.max_staleness)
    for line in report.format_lines(whole):
      say(line)
    if self._logdir:
      say(f'{"report":<20}{report.write(whole, self._logdir)}')
