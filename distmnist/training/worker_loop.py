"""What a worker does around each step: the hooks of its session, in order."""

import contextlib
import functools
import logging
import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import server as server_lib
from distmnist.exchange import nonfinite
from distmnist.exchange import strategy as strategy_lib
from distmnist.exchange.tables import (
  key_hook,
  table_saver,
  tables_apart,
  touched_hook,
)
from distmnist.lifecycle import (
  consistency,
  liveness,
  lost_workers,
  shutdown,
)
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import lives, report
from distmnist.training import chief as chief_lib
from distmnist.training import divergence, rule_checks, worker_steps
from distmnist.training.hooks import (
  batch_hook,
  progress_hook,
  save_hook,
  startup_hook,
  stay_hook,
  stop_hook,
  trace_hook,
)
from distmnist.training.telemetry import task_metrics, worker_summaries

_log = logging.getLogger(__name__)

_NAN_ADVICE = (
  'try a lower --learning_rate, --clip_norm=1 or, for an asynchronous strategy '
  'with many workers, the rate divided by their number'
)


class WorkerLoop:
  """The steps of a worker, from the first session to the report.

  Attributes:
    scaffold: session.ClusterScaffold.
    hooks: list of SessionRunHook.
  """

  def __init__(self, task, choice, graph, folder, history, console):
    """
    Args:
      task: task.Task, already serving.
      choice: flag_checks.Choice.
      graph: worker_graph.WorkerGraph, built in the default graph.
      folder: run_folder.RunFolder.
      history: history.History.
      console: console.Console.
    """
    self._task = task
    self._choice = choice
    self._graph = graph
    self._folder = folder
    self._history = history
    self._console = console

  def build(self, seed, judges, at_end):
    """Builds `scaffold` and `hooks`; the default graph is still open.

    Args:
      seed: int, from --seed.
      judges: (validation, test), split.Splits; only the chief needs them.
      at_end: contextlib.ExitStack, for what is written when this life ends.
    """
    task, step = self._task, self._graph.step
    cluster, strategy = task.cluster, self._choice.strategy
    restart = self._folder.restart
    self.scaffold = make_scaffold(
      task,
      strategy,
      restart,
      [step.table.hook(restart)],
      kept=step.own_local,
    )
    self._others = shutdown.Others(
      cluster, task.server, task.watchdog.secs_silent
    )
    self._stats = report.WorkerStats(
      cluster.task_index, life=task.watchdog.life, start=time.time()
    )
    source = worker_steps.make_source(
      task, self._choice.plan, self._graph, self._history, seed
    )
    steps, self._constants = worker_steps.make_steps(
      source, self._graph, bool(self._folder.summary_dir)
    )
    saves = None
    if cluster.is_chief:
      saves = save_hook.make(
        task, self._folder, steps, self.scaffold, self._others
      )
    self.hooks = self._make_hooks(source, steps, at_end, saves)
    task_metrics.follow_worker(task, self._life, self._progress, self._choice)
    if cluster.is_chief:
      kept = step.center + step.averages
      self._chief = chief_lib.Chief(
        task, self._choice, kept, judges, self._folder
      )
      self.hooks += self._chief.hooks(steps, self.scaffold, self._others, saves)
    self.hooks += stay_hook.make(
      *(task, strategy, self._others, self._find_last_step),
      saves and saves.end,
    )
    server_lib.log_placement(tf.get_default_graph())

  def _make_hooks(self, source, steps, at_end, saves):
    """Returns the list of hooks that every worker has."""
    task = self._task
    self._life = lives.LifeHook(self._stats, self._folder.path)
    first = startup_hook.make(self._choice, self._graph, task, self._others)
    if self._graph.warmup:
      first = [*first, self._graph.warmup.hook(steps)]
    stop = self._make_stop_hook(steps)
    hooks = [
      *order_hooks(task, self.scaffold, steps, stop, saves, first),
      stop_hook.NanHook(steps, self._make_loss_check(source).explain),
      batch_hook.BatchHook(
        source,
        self._graph.step.table,
        steps,
        self._choice.strategy,
        lost_workers.LostWorkers(task.cluster, task.watchdog),
        self._others.is_stop_for_all,
        task,
      ),
      self._make_progress_hook(steps, source),
      nonfinite.NonfiniteHook(self._stats),
      at_end.enter_context(contextlib.closing(self._life)),
    ]
    if self._choice.traced_steps:
      hooks.append(
        trace_hook.TraceHook(
          self._choice.traced_steps, steps, self._folder.summary_dir, task
        )
      )
    if self._folder.path and not task.cluster.is_chief:
      hooks.append(consistency.LogdirHook(task.watchdog, self._folder.path))
    return hooks

  def _make_loss_check(self, source):
    return divergence.LossCheck(
      self._choice.problem,
      self._graph.examples,
      source,
      self._choice.plan,
      self._task.server_config,
      _NAN_ADVICE,
    )

  def _find_last_step(self):
    """Returns the global step (int) at which the training ends."""
    return self._graph.step.table.dealing.last_step

  def _make_stop_hook(self, steps):
    hook = stop_hook.StopHook(
      steps,
      self._graph.step.global_step,
      self._find_last_step,
      self._task.stop,
      self._others.is_stop_for_all,
      self._choice.strategy.request_stop,
    )
    self._stats.sessions = hook.sessions
    return hook

  def _make_progress_hook(self, steps, source):
    self._progress = progress_hook.ProgressHook(
      self._stats,
      steps,
      self._constants,
      source,
      self._console,
      worker_summaries.from_flags(self._folder.summary_dir, self._graph.step),
      self._choice.problem.unit,
    )
    return self._progress

  def tell_chief(self):
    """Sends the chief this worker's stats, once the session is closed."""
    if not (self._task.cluster.is_chief or self._task.stop.is_requested):
      self._others.send_stats(self._stats)

  def report(self, start):
    """Logs how the run ended; the chief evaluates and writes the report.

    Args:
      start: float, time.monotonic() at the start of this program.
    """
    task = self._task
    if task.stop.is_requested:
      step = self._progress.final_step
      where = 'before the first step' if step is None else f'at step {step}'
      _log.info(f'stopped {where}')
    elif task.cluster.is_chief:
      self._chief.report(self._stats, self._progress, start)


def order_hooks(task, scaffold, steps, stop, saves, first=()):
  """Returns the hooks of any loop; `first` go before those of the rule.

  Args:
    task: task.Task, already serving.
    scaffold: session.ClusterScaffold.
    steps: fused_steps.Steps or own_step_hook.OwnStepHook.
    stop: stop_hook.StopHook.
    saves: save_hook.SaveHook of a chief, or None.
    first: list of SessionRunHook.
  """
  # At the start the strategy may set the variables and the global step; at the
  # end it releases waiting workers before the chief waits for them. What was
  # trained is then saved before anything that may fail or take long.
  return [
    liveness.LivenessHook(task),
    *first,
    *scaffold.hooks,
    steps,
    stop,
    *([stop_hook.EndHook(saves.end)] if saves else []),
  ]


def make_scaffold(task, strategy, restart, first=(), kept=()):
  """Returns the session.ClusterScaffold of a worker, with a TableSaver.

  Its hooks are those of the rule and its center.

  Args:
    task: task.Task, already serving; its watchdog learns to describe a wait.
    strategy: strategy.Strategy.
    restart: restart.Restart.
    first: list of SessionRunHook, which come before those of the rule.
    kept: list of tf.Variable, see session.ClusterScaffold.
  """
  strategy_hooks = [*first, *rule_checks.make_hooks(strategy, task.stop)]
  strategy_hooks += [key_hook.KeyHook(), touched_hook.TouchedHook()]
  stalls_of_task = task.stalls
  stalls_of_task.describe_wait = functools.partial(
    strategy_lib.describe_wait, strategy_hooks
  )
  stalls_of_task.steps_wait_for_others = strategy.steps_wait_for_others
  # If workers wait for each other, all saved rows are from one step.
  is_of_one_step = strategy.max_staleness == 0 and not tables_apart.is_wanted()
  saver = table_saver.TableSaver(
    task.cluster.cpu_device, may_mix=not is_of_one_step
  )
  return session_lib.ClusterScaffold(task, restart, saver, strategy_hooks, kept)
