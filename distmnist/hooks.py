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

from distmnist import cli, files, history, report, sockets, summaries

# How often a worker looks whether the chief has ended the training early.
_LOOK_SECS = 0.5


class StopHook(tf.train.SessionRunHook):
  """Ends the loop at the last step, on a signal, or when all shall stop.

  Attributes:
    sessions: list of [first, last], see report.WorkerStats.
  """

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
    self._has_run = False
    self.sessions = []

  def after_create_session(self, session, coord):
    step = int(session.run(self._global_step))
    history.record('session', step=step)
    if not self._has_run:
      del self.sessions[-1:]  # It was lost before its first step.
    self._has_run = False
    if self.sessions:
      lost = max(0, self.sessions[-1][1] - step)
      self._say(f'recovered at step {step}: {lost} steps lost')
    self.sessions.append([step, step])
    if step >= self._last_step:
      coord.request_stop()

  def after_run(self, run_context, run_values):
    self._has_run = True
    step = self._steps.last['global_step']
    # Who waited as the center was set back is let go with the step of then.
    self.sessions[-1][1] = max(self.sessions[-1][1], step)
    if step >= self._last_step:
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
    self._stats.batch_size = plan.batch_size
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
      self._writer = summaries.Writer(self._summary_dir, self._console.say)

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
      self._look_at_sockets()
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

  def _look_at_sockets(self):
    self._sockets.look()
    moved = self._sockets.read() or (0, 0)
    self._stats.bytes_sent, self._stats.bytes_received = moved

  def end(self, session):
    if self.final_step is not None:
      self._look_at_sockets()
    if self._printed_steps < self._stats.local_steps:
      self._print(time.monotonic(), self.final_step)
    if self._writer:
      if self.final_step is not None:
        self._write_staleness(self.final_step)
      self._writer.close()

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
      f'step {min(step, plan.last_step)}/{plan.last_step}'
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
    self._writer.write_scalars(shown, step)
    self._write_staleness(step)

  def _write_staleness(self, step):
    """Writes what has come since the last time."""
    staleness = self._stats.staleness - self._shown_staleness
    if staleness:
      self._shown_staleness = self._stats.staleness.copy()
      mean = report.compute_mean(staleness)
      self._writer.write_histogram('staleness', staleness, step)
      self._writer.write_scalars({'staleness_mean': mean}, step)


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
    path = os.path.join(self._folder, f'trace_{self._num_steps}.json')
    trace = timeline.Timeline(run_values.run_metadata.step_stats)
    try:
      os.makedirs(self._folder, exist_ok=True)
      with files.replacing(path) as file:
        file.write(trace.generate_chrome_trace_format(show_memory=False))
    except OSError as error:
      self._say(f'cannot write {path}: {error.strerror}')
      return
    self._say(f'local step {self._num_steps}: trace in {path}')

  def end(self, session):
    if missed := [n for n in self._wanted if n > self._num_steps]:
      steps = ', '.join(map(str, missed))
      self._say(
        f'no trace of local step {steps}: this worker made {self._num_steps}'
      )


class EndHook(tf.train.SessionRunHook):
  """Calls `callback(session)` when the training has ended without an error."""

  def __init__(self, callback):
    self._callback = callback

  def end(self, session):
    self._callback(session)
