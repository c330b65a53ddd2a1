"""What a worker does around each step: the hooks of its session, in order."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.cluster import server as server_lib
from distmnist.exchange.steps import run_length
from distmnist.lifecycle import (
  consistency,
  liveness,
  lost_workers,
  shutdown,
)
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import report
from distmnist.tables import table_saver, tables_apart
from distmnist.training import chief as chief_lib
from distmnist.training import divergence, rule_checks, worker_graph
from distmnist.training.hooks import (
  batch_hook,
  end_hook,
  progress,
  save_hook,
  startup_hook,
  stop_hook,
  tracer,
)
from distmnist.training.telemetry import worker_metrics, worker_summaries
from distmnist.transport import nonfinite
from distmnist.transport import strategy as strategy_lib

if TYPE_CHECKING:
  from distmnist.common import console as console_lib
  from distmnist.exchange.steps import fused_steps
  from distmnist.lifecycle import task as task_lib
  from distmnist.training import flag_checks, run_folder
  from distmnist.training.batches import batch_source
  from distmnist.training.problems import problem_data

_log = logging.getLogger(__name__)

_NAN_ADVICE = (
  'try a lower --learning_rate, --clip_norm=1 or, for an asynchronous strategy '
  'with many workers, the rate divided by their number'
)


# All hooks of a worker. TensorFlow calls each of their methods in this order:
# begin, after_create_session, before_run, after_run and, after the last step,
# end. A worker has some of them, by its flags and its rule. Each says when it
# has something to do: as a session begins (start), before and after a step, as
# the training ends (end); and why it stands there.
ORDER = (
  # Start, before, after, end: notes what begins before anything can block; all
  # that follow call the session.run that it has replaced, which names a lost
  # task.
  'liveness',
  # Start: waits for the worker to begin before the rule copies the center: the
  # copy would grow stale.
  'startup',
  # Start, before, after: warms up the graphs before the rule copies the center;
  # all that follow read what the step has fetched.
  'steps',
  # Start, before, after, end: may set the variables and the global step, which
  # those that follow read (amid the steps, only without a ps); at the end
  # releases waiting workers before the chief waits for them.
  'rule',
  # Start, after, end: requests the stop that those that follow see, and lets no
  # infinite loss reach them; at the end saves before anything that may fail or
  # take long.
  'stop',
  # Start, after: takes the next batches unless the loop is to end, as a
  # checkpoint has them (in lock-step each worker knows its own).
  'batches',
  # Start, before, after, end: counts and shows a step before what takes time
  # beside it.
  'telemetry',
  # Start, before, after, end: the hooks of a script, once all of the step is
  # known; a save sees what they have set.
  'own',
  # Start, before, after: evaluates and saves, on the chief, what the step has
  # made, before it lets others go.
  'save',
  # Start, after, end: waits for other workers when nothing else is left to do
  # and a stop is requested.
  'end',
)


def order_hooks(
  **hooks: tf.train.SessionRunHook | Sequence[tf.train.SessionRunHook] | None,
) -> list[tf.train.SessionRunHook]:
  """Returns the list of SessionRunHooks of a loop, in their order.

  Args:
    hooks: for a name in ORDER a hook, or a list of them, or None.
  """
  if unknown := hooks.keys() - {*ORDER}:
    raise ValueError(f'no place in ORDER: {", ".join(sorted(unknown))}')
  ordered = []
  for name in ORDER:
    found = hooks.get(name)
    if isinstance(found, (list, tuple)):
      ordered += found
    elif found:
      ordered.append(found)
  return ordered


class WorkerLoop:
  """The steps of a worker, from the first session to the report."""

  def __init__(
    self,
    task: task_lib.Task,
    choice: flag_checks.Choice,
    graph: worker_graph.WorkerGraph,
    folder: run_folder.RunFolder,
    console: console_lib.Console,
  ) -> None:
    """
    Args:
      task: already serving.
      graph: built in the default graph.
    """
    self._task = task
    self._choice = choice
    self._graph = graph
    self._folder = folder
    self._console = console

  def build(
    self, seed: int, judges: Mapping[str, problem_data.Examples]
  ) -> None:
    """Builds `scaffold` and `hooks`; the default graph is still open.

    Args:
      judges: {name: split.Split} of the chief, see problem_data.load_judges.
    """
    task, choice, folder = self._task, self._choice, self._folder
    cluster, step, strategy = task.cluster, self._graph.step, choice.strategy
    state = RuleState(task, strategy)
    self._others = others = shutdown.Others(
      cluster, task.server, task.watchdog.secs_silent
    )
    self._stats = report.WorkerStats(
      cluster.task_index, life=task.watchdog.life, start=time.time()
    )
    source = worker_graph.make_source(
      task, choice.plan, self._graph, task.history, seed
    )
    steps, constants = worker_graph.make_steps(
      source, self._graph, bool(folder.summary_dir), self._make_pace()
    )
    saves: save_hook.SaveHook | None = None
    self._chief: chief_lib.Chief | None = None
    if cluster.is_chief:
      saves = save_hook.make(task, folder, steps, state, others)
      self._chief = chief_lib.Chief(
        *(task, choice, step.center + step.averages, judges, folder),
        *(steps, others, saves),
      )
    stop = self._make_stop_hook(steps, source, saves)
    self._stats.sessions = stop.sessions
    self._end = end_hook.EndHook(
      task,
      others,
      strategy,
      lambda: self._graph.table.dealing.last_step,
      saves,
      self._chief and self._chief.read_last,
    )
    self.hooks = order_hooks(
      liveness=state.make_liveness(),
      startup=startup_hook.StartupHook(
        *(choice.start_step, step.global_step, task.stop, task.stalls),
        others.is_stop_for_all,
      )
      if choice.start_step
      else None,
      steps=steps,
      rule=state.hooks,
      stop=stop,
      batches=batch_hook.BatchHook(
        *(source, self._graph.table, steps, strategy),
        lost_workers.LostWorkers(cluster, task.watchdog, task.stalls.warn_secs),
        *(others.is_stop_for_all, task),
      ),
      telemetry=self._make_telemetry(steps, constants, source),
      save=self._chief,
      end=self._end,
    )
    self.scaffold = session_lib.ClusterScaffold(
      task,
      folder.restart,
      state.saver,
      [
        self._graph.table.hook(folder.restart),
        *state.hooks,
        *([self._chief] if self._chief else []),
      ],
      kept=step.own_local,
      before_restore=saves.end_beside if saves else lambda: None,
    )
    server_lib.log_placement(tf.get_default_graph())

  def _make_pace(self) -> run_length.Pace | None:
    """Returns the run_length.Pace of a worker, for --steps_per_run=auto.

    None under a rule that would lose what its copies have of their own, as they
    are pulled anew once longer runs are prepared.
    """
    cluster, strategy = self._task.cluster, self._choice.strategy
    if strategy.needs_warmup and strategy.has_local_steps:
      return None
    dealing = self._graph.table.dealing
    periods, summary_period = (), worker_summaries.period_from_flags()
    if cluster.is_chief:
      of_chief = chief_lib.find_period(self._choice.plan)
      periods = save_hook.period_from_flags(), of_chief
    marks = run_length.Marks(
      tuple(period for period in periods if period),
      (summary_period,) if self._folder.summary_dir else (),
      max(1, math.ceil(cluster.num_workers / dealing.batches_per_update)),
      has_traces=bool(self._choice.traced_steps),
    )
    stop = self._task.stop
    return run_length.Pace(
      marks, strategy.agreement, is_stopping=lambda: stop.is_requested
    )

  def _make_stop_hook(
    self,
    steps: fused_steps.Steps,
    source: batch_source.BatchSource,
    saves: save_hook.SaveHook | None,
  ) -> stop_hook.StopHook:
    task, choice = self._task, self._choice
    loss_check = divergence.LossCheck(
      choice.problem,
      self._graph.examples,
      source,
      choice.plan,
      task.server_config,
      _NAN_ADVICE,
    )
    return stop_hook.StopHook(
      steps,
      self._graph.step.global_step,
      self._graph.table.find_end,
      task.stop,
      self._others.is_stop_for_all,
      choice.strategy.request_stop,
      explain_nan=loss_check.explain,
      save=saves.save_last if saves else lambda session: None,
      history=task.history,
      metrics=task.metrics,
    )

  def _make_telemetry(
    self,
    steps: fused_steps.Steps,
    constants: dict[str, int],
    source: batch_source.BatchSource,
  ) -> TelemetryHook:
    task, choice, folder = self._task, self._choice, self._folder
    step = self._graph.step
    self._progress = progress.Progress(
      *(self._stats, steps, constants, source, self._console),
      worker_summaries.from_flags(
        folder.summary_dir, step.learning_rate, step.metrics
      ),
      choice.problem.unit,
      task.metrics,
    )
    traced = None
    if choice.traced_steps and folder.summary_dir:
      traced = tracer.Tracer(
        choice.traced_steps, steps, folder.summary_dir, task
      )
    return TelemetryHook(task, folder, self._stats, self._progress, traced)

  def tell_chief(self) -> None:
    """Sends the chief this worker's stats, once the session is closed."""
    if not (self._task.cluster.is_chief or self._task.stop.is_requested):
      self._others.send_stats(self._stats)

  def report(self, start: float) -> None:
    """Logs how the run ended; the chief evaluates and writes the report.

    Args:
      start: time.monotonic() at the start of this program.
    """
    task = self._task
    if task.stop.is_requested:
      log_stop(self._progress)
    elif self._chief:
      self._chief.report(self._stats, self._end.workers, self._progress, start)


class TelemetryHook(tf.train.SessionRunHook):
  """Counts a step before it is shown, and has a sample of it written.

  The first step has one, so that of each life that made one something is known,
  and each printed line: what a killed worker has shown is in its metrics.
  """

  def __init__(
    self,
    task: task_lib.Task,
    folder: run_folder.RunFolder,
    stats: report.WorkerStats,
    progress: progress.Progress,
    traced: tracer.Tracer | None = None,
  ) -> None:
    """
    Args:
      task: already serving; its samples report the steps from now on.
      stats: filled in by `progress`.
    """
    self._task, self._folder = task, folder
    self._stats, self._progress, self._tracer = stats, progress, traced
    self._nonfinite = nonfinite.Counter(stats)
    self._is_checked = self._has_run = False
    task.metrics.collect_by(
      worker_metrics.WorkerMetrics(
        stats, progress, task.stalls, task.stalls.warn_secs
      ).collect
    )

  def begin(self) -> None:
    self._progress.begin()
    self._nonfinite.build()

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    self._progress.begin_session()
    if not self._is_checked:  # The chief has signed its log directory.
      self._is_checked = True
      if self._folder.path and not self._task.cluster.is_chief:
        consistency.check_logdir(self._task.watchdog, self._folder.path)

  def before_run(
    self, run_context: tf.train.SessionRunContext
  ) -> tf.train.SessionRunArgs | None:
    return self._tracer.choose_args() if self._tracer else None

  def after_run(
    self,
    run_context: tf.train.SessionRunContext,
    run_values: tf.train.SessionRunValues,
  ) -> None:
    is_shown = self._progress.count_run(run_context.session)
    self._nonfinite.look_if_due(run_context.session)
    if not self._has_run and self._progress.final_step is not None:
      self._has_run = True
      self._task.metrics.sample()
    elif is_shown:
      self._task.metrics.sample_if_due()
    if self._tracer:
      self._tracer.write(run_values)

  def end(self, session: tf.Session) -> None:
    self._progress.end()
    self._nonfinite.look(session)
    self._stats.has_ended = True
    self._task.metrics.sample()
    if self._tracer:
      self._tracer.end()


def log_stop(progress: progress.Progress) -> None:
  """Logs where a worker has stopped on request, by its progress.Progress."""
  step = progress.final_step
  where = 'before the first step' if step is None else f'at step {step}'
  _log.info(f'stopped {where}')


class RuleState:
  """What a rule keeps on the ps: its hooks, and what saves and restores it.

  Attributes:
    hooks: those of the rule.
  """

  def __init__(
    self, task: task_lib.Task, strategy: strategy_lib.Strategy
  ) -> None:
    """
    Args:
      task: already serving.
      strategy: its step is built in the default graph.
    """
    self._task, self._strategy = task, strategy
    self.hooks = rule_checks.check_hooks(strategy, strategy.hooks(task.stop))
    # If workers wait for each other, all saved rows are from one step.
    is_of_one_step = (
      strategy.max_staleness == 0 and not tables_apart.is_wanted()
    )
    self.saver = table_saver.TableSaver(
      task.cluster.cpu_device, may_mix=not is_of_one_step
    )

  def is_whole(self, session: tf.Session) -> bool:
    """Whether the whole center is from one update; see strategy.CenterHook."""
    return strategy_lib.is_whole(self.hooks, session)

  def make_liveness(self) -> liveness.LivenessHook:
    """Returns the LivenessHook of its worker."""
    member = strategy_lib.find_member(self.hooks)
    return liveness.LivenessHook(
      self._task,
      self._strategy.steps_wait_for_others,
      lambda: strategy_lib.describe_wait(self.hooks),
      member and member.find_loss,
    )
