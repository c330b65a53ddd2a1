"""Counts the steps of a worker, prints its progress, writes its summaries."""

import collections
import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import socket_bytes
from distmnist.logdir import report
from distmnist.training import summaries


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
      steps: fused_steps.Steps, with `global_step` (after the step), `cost` and,
        where they differ from step to step, `bytes_pulled`, `bytes_pushed` and
        `staleness`; of a run's last step `accuracy`, for summaries.
      constants: {name: number}, those of them that stay the same.
      learning_rate: float32 scalar tensor, at the global step of the moment.
      plan: schedule.Plan.
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
    self._sockets = socket_bytes.SocketBytes()
    self._writer = None
    self._start = None
    self._printed_steps = 0
    self.first_step = None
    self.final_step = None
    self.final_cost = None

  def begin(self):
    if self._summary_dir:
      self._writer = summaries.Writer(self._summary_dir)

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
