"""Our SessionRunHooks: stop, NaN, progress and summaries, validation.

All of them read what steps.Steps, which comes before them, has fetched in the
run of the training step itself: a step stays one session.run. What happens
after the loop has an order: that of the list of hooks in train.py.
"""

import collections
import math
import os
import time

import tensorflow.compat.v1 as tf

# What tf.train.ProfilerHook writes its files with; that hook cannot choose the
# step, and traces the first one, which sets up the graph.
from tensorflow.python.client import timeline

from distmnist import checkpoints, cli, report, sockets

# How often a worker looks whether the chief has ended the training early.
_LOOK_SECS = 0.5


class StopHook(tf.train.SessionRunHook):
  """Ends the loop at the last step, on a signal, or when all shall stop."""

  def __init__(
    self,
    steps,
    global_step,
    last_step,
    stop,
    is_stop_for_all,
    request_stop=tf.train.SessionRunContext.request_stop,
    say=print,
  ):
    """
    Args:
      steps: steps.Steps, with the `global_step` after each.
      global_step: int64 scalar variable.
      last_step: int, the global step at which training ends.
      stop: preemption.StopRequest of this process.
      is_stop_for_all: callable -> bool, or None; looked at every half second.
      request_stop: callable(run_context), how to end before the last step.
      say: callable that prints a line.
    """
    self._steps = steps
    self._global_step = global_step
    self._last_step = last_step
    self._stop = stop
    self._is_stop_for_all = is_stop_for_all
    self._request_stop = request_stop
    self._say = say
    self._next_look = 0.0
    self._step = None
    self.num_recoveries = 0
    self.steps_lost = 0

  def after_create_session(self, session, coord):
    step = int(session.run(self._global_step))
    self._steps.know(step)
    if self._step is not None:
      lost = max(0, self._step - step)
      self.num_recoveries += 1
      self.steps_lost += lost
      self._say(f'recovered at step {step}: {lost} steps lost')
    if step >= self._last_step:
      coord.request_stop()

  def after_run(self, run_context, run_values):
    self._step = self._steps.last['global_step']
    if self._step >= self._last_step:
      run_context.request_stop()
    elif self._stop.is_requested:
      self._request_stop(run_context)
    elif self._is_stop_for_all and time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _LOOK_SECS
      if self._is_stop_for_all():
        self._request_stop(run_context)


class NanHook(tf.train.SessionRunHook):
  """Stops with a sentence that helps when the cost is no number."""

  def __init__(self, steps, advice):
    self._steps = steps
    self._advice = advice

  def after_run(self, run_context, run_values):
    cost = self._steps.last['cost']
    if not math.isfinite(cost):
      raise cli.RunError(f'the cost is {cost}: {cli.DIVERGED}; {self._advice}')


class ProgressHook(tf.train.SessionRunHook):
  """Counts this worker's steps; prints progress; writes its summaries."""

  def __init__(
    self,
    stats,
    steps,
    constants,
    learning_rate,
    plan,
    console,
    summary_dir=None,
    summary_steps=100,
  ):
    """
    Args:
      stats: report.WorkerStats, filled in here.
      steps: steps.Steps, with `global_step` (after the step), `cost` and, where
        they differ from step to step, `bytes_pulled`, `bytes_pushed` and
        `staleness`; of a run's last step `accuracy`, for summaries.
      constants: {name: number}, those of them that stay the same.
      learning_rate: float32 scalar tensor, at the global step of the moment.
      plan: input_pipeline.Plan.
      console: console.Console.
      summary_dir: str, this worker's folder for events, or None.
      summary_steps: int, local steps from one summary to the next.
    """
    self._steps = steps
    self._constants = constants
    self._learning_rate = learning_rate
    self._stats = stats
    self._plan = plan
    self._console = console
    self._summary_dir = summary_dir
    self._summary_steps = summary_steps
    self._next_summary = 0
    self._shown_staleness = collections.Counter()
    self._sockets = sockets.SocketBytes()
    self._writer = None
    self._start = None
    self._printed_steps = 0
    self.first_step = None
    self.final_step = None
    self.final_cost = None

  def begin(self):
    if self._summary_dir:
      self._writer = tf.summary.FileWriter(self._summary_dir)

  def after_run(self, run_context, run_values):
    now, stats = time.monotonic(), self._stats
    has_summary = self._writer and stats.local_steps >= self._next_summary
    for fetched in self._steps.done:
      values = fetched | self._constants
      self._count(values)
    if self._start is None:
      self._start, self.first_step = now, self.final_step
      self._mark = (now, self.final_step, stats.local_steps)
      self._summary_mark = self._mark
      self._sockets.look()
    else:
      stats.timed_steps += len(self._steps.done)
    stats.train_secs = now - self._start
    if has_summary:
      self._next_summary += self._summary_steps
      # Fetched with the step it would make another graph of it to prepare.
      rate = run_context.session.run(self._learning_rate)
      self._write_summary(values | {'learning_rate': rate}, now)
    if self._console.is_due():
      self._sockets.look()
      self._print(now, self.final_step)

  def _count(self, values):
    """Counts a step, of which `values` are {name: number}."""
    stats = self._stats
    self.final_cost = values['cost']
    self.final_step = values['global_step']
    stats.local_steps += 1
    stats.images += self._plan.batch_size
    stats.pushes += bool(values['bytes_pushed'])
    stats.bytes_pulled += values['bytes_pulled']
    stats.bytes_pushed += values['bytes_pushed']
    # A step that pushed nothing has a staleness of -1.
    if values.get('staleness', -1) >= 0:
      stats.staleness[values['staleness']] += 1

  def end(self, session):
    if self.final_step is not None:
      self._sockets.look()
      moved = self._sockets.read() or (0, 0)
      self._stats.bytes_sent, self._stats.bytes_received = moved
    if self._printed_steps < self._stats.local_steps:
      self._print(time.monotonic(), self.final_step)
    if self._writer:
      if self.final_step is not None:
        self._write_staleness(self.final_step)
      self._writer.flush()

  def images_per_sec(self):
    """Of all workers, over the whole loop; None if it was a single step."""
    if self.final_step is None or self.final_step == self.first_step:
      return None
    images = (self.final_step - self.first_step) * self._plan.images_per_update
    return images / max(1e-9, self._stats.train_secs)

  def _print(self, now, step):
    plan = self._plan
    then, last_step, last_local = self._mark
    self._mark = (now, step, self._stats.local_steps)
    self._printed_steps = self._stats.local_steps
    text = (
      f'step {step}/{plan.last_step}'
      f'  epoch {step * plan.images_per_update / plan.images_per_epoch:.2f}'
      f'  cost {self.final_cost:.4f}'
    )
    local_steps = self._stats.local_steps - last_local
    if local_steps and step > last_step:
      rate = (step - last_step) * plan.images_per_update / (now - then)
      text += (
        f'  {1000 * (now - then) / local_steps:.2f} ms/step'
        f'  {rate:,.0f} images/s'
      )
    self._console.progress(text, step / plan.last_step)

  def _write_summary(self, values, now):
    step = self.final_step
    then, _, last_local = self._summary_mark
    self._summary_mark = (now, step, self._stats.local_steps)
    shown = {
      name: values[name] for name in ('cost', 'accuracy', 'learning_rate')
    }
    shown |= {
      name: getattr(self._stats, name)
      for name in ('local_steps', 'images', 'bytes_pulled', 'bytes_pushed')
    }
    local_steps = self._stats.local_steps - last_local
    if local_steps:
      images = local_steps * self._plan.batch_size
      shown['images_per_sec'] = images / (now - then)
    write_scalars(self._writer, shown, step)
    self._write_staleness(step)

  def _write_staleness(self, step):
    """Writes what has come since the last time."""
    staleness = self._stats.staleness - self._shown_staleness
    if staleness:
      self._shown_staleness = self._stats.staleness.copy()
      mean = report.compute_mean(staleness)
      write_histogram(self._writer, 'staleness', staleness, step)
      write_scalars(self._writer, {'staleness_mean': mean}, step)


class ValidationHook(tf.train.SessionRunHook):
  """The chief's early stopping: keeps the best checkpoint, ends the training.

  Every `every_steps` global steps the validation accuracy is computed with
  the center as it is, while the other workers go on.
  """

  def __init__(
    self,
    steps,
    compute_accuracy,
    every_steps,
    patience,
    logdir,
    stop_all,
    say,
    request_stop=tf.train.SessionRunContext.request_stop,
  ):
    """
    Args:
      steps: steps.Steps, with the `global_step` after each.
      compute_accuracy: callable, session -> accuracy on the validation split.
      every_steps: int, global steps from one evaluation to the next.
      patience: int, evaluations without a better one until training ends; 0
        never ends it.
      logdir: str or None; the best checkpoint goes to its folder 'best'.
      stop_all: callable, tells the other workers to stop.
      say: callable that prints a line.
      request_stop: callable(run_context), how this worker ends its loop.
    """
    self._steps = steps
    self._compute_accuracy = compute_accuracy
    self._every_steps = every_steps
    self._patience = patience
    self._logdir = logdir
    self._stop_all = stop_all
    self._say = say
    self._request_stop = request_stop
    self._next_step = None
    self._num_worse = 0
    self.best_step = None
    self.best_accuracy = -1.0

  def begin(self):
    self._saver = tf.train.Saver(max_to_keep=1)
    self._writer = None
    if self._logdir:
      os.makedirs(checkpoints.best_dir(self._logdir), exist_ok=True)
      self._writer = tf.summary.FileWriter(
        os.path.join(self._logdir, 'validation')
      )

  def after_run(self, run_context, run_values):
    step = self._steps.last['global_step']
    if self._next_step is None:
      self._next_step = step + self._every_steps - step % self._every_steps
    if step < self._next_step:
      return
    self._next_step = step + self._every_steps
    self._evaluate(run_context.session, step)
    if self._patience and self._num_worse >= self._patience:
      self._say(
        f'early stopping at step {step}: {self._num_worse} evaluations without '
        f'a better one than {self.best_accuracy:.4f} at step {self.best_step}'
      )
      self._request_stop(run_context)
      self._stop_all()

  def _evaluate(self, session, step):
    accuracy = self._compute_accuracy(session)
    is_best = accuracy > self.best_accuracy
    self._num_worse = 0 if is_best else self._num_worse + 1
    if is_best:
      self.best_accuracy, self.best_step = accuracy, step
      if self._logdir:
        best = checkpoints.prefix(checkpoints.best_dir(self._logdir))
        self._saver.save(session, best, global_step=step)
    if self._writer:
      write_scalars(self._writer, {'accuracy': accuracy}, step)
    best_mark = ' (best so far)' if is_best else ''
    self._say(f'step {step}: validation accuracy {accuracy:.4f}{best_mark}')


class SaveHook(tf.train.SessionRunHook):
  """The chief's checkpoints: at the start, at intervals, on demand, at the end.

  What is lost with a ps is what was done since the last one.
  """

  def __init__(
    self, steps, global_step, saver, logdir, save_secs, save_steps, others
  ):
    """
    Args:
      steps: steps.Steps, with the `global_step` after each.
      global_step: int64 scalar variable.
      saver: tf.train.Saver.
      logdir: str, or None: then there is nothing to save, and who asks for it
        is told so.
      save_secs: float, seconds from one checkpoint to the next.
      save_steps: int, global steps from one to the next, or None.
      others: session.Others; a ps that must stop asks for a checkpoint.
    """
    self._steps = steps
    self._global_step = global_step
    self._saver = saver
    self._logdir = logdir
    self._save_secs = save_secs
    self._save_steps = save_steps or math.inf
    self._others = others
    self._next_look = 0.0
    self._saved_step = None

  def begin(self):
    if self._logdir:
      checkpoints.check_space(self._logdir, tf.global_variables())

  def after_create_session(self, session, coord):
    self._save(session)

  def after_run(self, run_context, run_values):
    now, is_wanted = time.monotonic(), False
    if now >= self._next_look:
      self._next_look = now + _LOOK_SECS
      is_wanted = self._others.is_save_wanted()
    num_steps = self._steps.last['global_step'] - (self._saved_step or 0)
    is_due = num_steps >= self._save_steps or now - self._time > self._save_secs
    if is_wanted or is_due:
      self._save(run_context.session)
    if is_wanted:
      self._others.confirm_save(self._saved_step)

  def end(self, session):
    self._save(session)

  def _save(self, session):
    self._time = time.monotonic()
    if not self._logdir:
      return
    step = int(session.run(self._global_step))
    if step != self._saved_step:
      checkpoints.save(self._saver, session, self._logdir, step)
      self._saved_step = step


class TraceHook(tf.train.SessionRunHook):
  """Writes what the devices of a step did, of this worker and of every ps.

  A Chrome timeline: load the file in chrome://tracing or ui.perfetto.dev. The
  clocks of the hosts are taken as they are.
  """

  def __init__(self, local_steps, steps, folder, say):
    """
    Args:
      local_steps: list of int, which steps of this worker, from 1.
      steps: steps.Steps: a run of several steps is one file.
      folder: str, where trace_STEP.json goes.
      say: callable that prints a line.
    """
    self._wanted = sorted(local_steps)
    self._steps = steps
    self._folder = folder
    self._say = say
    self._num_steps = 0

  def before_run(self, run_context):
    last = self._num_steps + len(self._steps.all_now())
    self._is_traced = any(self._num_steps < n <= last for n in self._wanted)
    if not self._is_traced:
      return None
    return tf.train.SessionRunArgs(
      [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    )

  def after_run(self, run_context, run_values):
    self._num_steps += len(self._steps.done)
    if not self._is_traced:
      return
    os.makedirs(self._folder, exist_ok=True)
    path = os.path.join(self._folder, f'trace_{self._num_steps}.json')
    trace = timeline.Timeline(run_values.run_metadata.step_stats)
    with open(path, 'w', encoding='utf-8') as file:
      file.write(trace.generate_chrome_trace_format(show_memory=False))
    self._say(f'local step {self._num_steps}: trace in {path}')


class EndHook(tf.train.SessionRunHook):
  """Calls `callback(session)` when the training has ended without an error."""

  def __init__(self, callback):
    self._callback = callback

  def end(self, session):
    self._callback(session)


def write_graph(logdir):
  """Writes the default graph as it is now to `logdir`, for TensorBoard."""
  with tf.summary.FileWriter(logdir) as writer:
    writer.add_graph(tf.get_default_graph())


def write_scalars(writer, scalars, step):
  """Writes {tag: number} as one summary at `step`."""
  values = [
    tf.Summary.Value(tag=tag, simple_value=float(number))
    for tag, number in scalars.items()
  ]
  writer.add_summary(tf.Summary(value=values), step)
  writer.flush()


def write_histogram(writer, tag, counts, step):
  """Writes {whole number: how often} as one summary at `step`.

  Each number has a bucket of its own, half to either side of it.
  """
  numbers = range(min(counts), max(counts) + 1)
  histogram = tf.HistogramProto(
    min=numbers[0],
    max=numbers[-1],
    num=sum(counts.values()),
    sum=sum(number * n for number, n in counts.items()),
    sum_squares=sum(number**2 * n for number, n in counts.items()),
    bucket_limit=[numbers[0] - 0.5, *(number + 0.5 for number in numbers)],
    bucket=[0, *(counts.get(number, 0) for number in numbers)],
  )
  value = tf.Summary.Value(tag=tag, histo=histogram)
  writer.add_summary(tf.Summary(value=[value]), step)
