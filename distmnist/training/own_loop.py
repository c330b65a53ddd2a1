"""Runs a script with its own model, loss and loop on a cluster.

  import distmnist
  import tensorflow.compat.v1 as tf

  def train(task):
    train_op, loss = task.minimize(build_loss)
    with task.session(last_step=1000) as session:
      while not session.should_stop():
        session.run(train_op)

  if __name__ == '__main__':
    distmnist.run_task(train)

Each task runs the script with the flags that say which task it is, or is
started by `launch --module`. A ps serves and exits; a worker keeps the
variables of its loss on the ps, trains by the rule of --strategy, and survives
what distmnist.train survives. The script chooses what it reads; its task knows
its index and the number of workers.
"""

from __future__ import annotations

import distmnist.runtime  # TensorFlow, quiet and in graph mode.

# isort: split
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import server as server_lib
from distmnist.cluster import stop_request
from distmnist.common import cli, refusals
from distmnist.common import console as console_lib
from distmnist.common.names import CHIEF, MIN_WORKERS
from distmnist.data import seeds
from distmnist.lifecycle import late_start, ps, shutdown
from distmnist.lifecycle import session as session_lib
from distmnist.lifecycle import task as task_lib
from distmnist.logdir import checkpoints, report, run_flags
from distmnist.nn import groups as groups_lib
from distmnist.nn import optimizer_checks, schedules
from distmnist.training import (
  center_reader,
  final_report,
  flag_checks,
  idle_flags,
  run_folder,
  script_calls,
  script_checks,
  script_errors,
  step,
  worker_graph,
  worker_loop,
)
from distmnist.training.hooks import (
  end_hook,
  own_step_hook,
  progress,
  save_hook,
  stop_hook,
)
from distmnist.training.problems import classic_variables
from distmnist.training.telemetry import task_metrics, worker_summaries

if TYPE_CHECKING:
  from distmnist.transport import model_state

_log = logging.getLogger(__name__)

# The last step where the script's loop decides.
_ENDLESS = sys.maxsize
_OF_SCRIPT = refusals.Refusal(
  'lr_schedule',
  lambda f: flags.FLAGS.lr_schedule == 'plateau',
  ' goes by evaluations on the validation split, and a loop of its own has '
  'none: take another schedule',
)


class WorkerTask:
  """What a worker's script sees of its cluster.

  Attributes:
    index: which worker this is; 0 is the chief.
    is_chief: whether this worker saves and should evaluate.
    global_step: int64 scalar variable, on a ps if there is one.
  """

  def __init__(
    self, task: task_lib.Task, console: console_lib.Console | None = None
  ) -> None:
    """
    Args:
      task: task.Task of a worker, not yet serving.
      console: takes the lines of progress.

    Raises:
      cli.UsageError: a flag contradicts the others or the cluster.
    """
    self._task, self._start = task, time.monotonic()
    self._console = console or console_lib.Console(draws=False)
    cluster = task.cluster
    self._rule, self._strategy = flag_checks.make_strategy(cluster)
    refusals.refuse(
      (*flag_checks.OF_RULE, _OF_SCRIPT),
      rule=self._rule,
      strategy=self._strategy,
      min_workers=os.environ.get(MIN_WORKERS),
    )
    schedules.check_flags()
    if cluster.is_chief:
      final_report.check_flags()
    self.index, self.num_workers = cluster.task_index, cluster.num_workers
    self.is_chief = cluster.is_chief
    self._built: step.Step | None = None
    self._exit: SystemExit | None = None
    self._session: tf.train.MonitoredSession | None = None
    self._has_begun = False
    seeds.set_seed(step.seed_from_flags(), self.index)
    # What the script builds before `minimize` may use it.
    self._placement = step.make_global_step(cluster)
    self.global_step = tf.train.get_global_step()

  def minimize(
    self,
    build_loss: Callable[[], Any],
    groups: Mapping[str, Mapping[str, Any]] | None = None,
  ) -> tuple[Any, ...]:
    """Builds the loss, and one step of this worker, in the default graph.

    Args:
      build_loss: callable() -> float32 scalar tensor, the mean over a batch of
        this worker, or (that tensor, {name: tensor} of outputs). The variables
        that it makes are on the ps. All workers make the same variables, and
        their losses use the same of them. Outputs that are single floats, such
        as an accuracy, are metrics of each step.
      groups: {pattern: {...}}, variables with an optimizer, a rate or a weight
        decay of their own by their whole names, see nn/groups.py; the same on
        all workers.

    Returns:
      (train_op, loss): int64 scalar tensor that makes a step by --strategy and
      --optimizer and gives the global step after it; build_loss's tensor. With
      outputs (train_op, loss, outputs).

    Raises:
      cli.UsageError: --strategy cannot train one of the variables, the loss has
        a gradient for none, the groups are wrong, or this is the second call.
    """
    script_checks.check_builder(build_loss)
    self._groups = groups_lib.parse(groups, 'minimize(): groups')
    refusals.refuse(
      optimizer_checks.OF_ONE, strategy=self._strategy, groups=self._groups
    )
    before = tf.local_variables()
    if self._built is not None:
      raise cli.UsageError(
        'minimize() a second time: a task has one step, which an update rule '
        'counts and others may wait for; minimize the sum of the losses, with '
        'tf.stop_gradient where one is not to move a variable'
      )

    views: dict[str, Any] = {}
    outputs: dict[str, tf.Tensor] | None = None

    def note(
      getter: Callable[..., tf.Variable], name: str, *args: Any, **kwargs: Any
    ) -> tf.Variable:
      views[name] = getter(name, *args, **kwargs)
      return views[name]

    def build(
      state: model_state.ModelState,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
      nonlocal outputs
      with (
        tf.variable_scope(tf.get_variable_scope(), custom_getter=note),
        classic_variables.shared(cli.UsageError),
      ):
        loss, outputs = script_checks.take_outputs(build_loss())
      script_checks.check_loss(loss)
      return loss, _find_metrics(loss, outputs or {})

    self._built = built = step.build_step_of(
      *(self._task.cluster, self._strategy, build),
      placement=self._placement,
      groups=self._groups,
    )
    self._own_local = before + built.own_local
    self._all_local = tf.local_variables()
    self._center = center_reader.CenterReader(
      views, built.center + built.averages
    )
    if outputs is None:
      return built.update.train_op, built.loss
    return built.update.train_op, built.loss, outputs

  def evaluate(self, fetches: Any, feed_dict: Mapping | None = None) -> Any:
    """Returns `fetches`, computed with the center and without a step.

    It is the center of this moment on every worker, also under a rule by which
    a worker trains a copy of its own; with --ema_decay its moving averages.
    Within `session()`, also after the last step.

    Args:
      fetches, feed_dict: as of tf.Session.run.

    Raises:
      cli.UsageError: there is no session.
    """
    if self._session is None:
      raise cli.UsageError(
        'evaluate() outside of session(): it reads the center, which is there '
        'from the beginning of the with block to its end'
      )

    def evaluate(step_context: Any = None) -> Any:
      del step_context  # A recovery hands the session of before.
      self._task.stalls.busy("the script's evaluation")
      return self._center.run(self._last.session, fetches, feed_dict)

    if self._session.should_stop():
      return evaluate()
    return self._session.run_step_fn(evaluate)

  @contextlib.contextmanager
  def session(
    self,
    last_step: int | None,
    hooks: Sequence[tf.train.SessionRunHook] = (),
    config: tf.ConfigProto | None = None,
  ) -> Iterator[tf.train.MonitoredSession]:
    """Yields the MonitoredSession in which all train up to `last_step`.

    It restores from --logdir, and the chief saves there. At its end the chief
    waits for the others.

    Args:
      last_step: the global step at which `should_stop` is true; None: the
        script's loop decides, and that of the chief ends the training.
      hooks: the script's own tf.train.SessionRunHooks.
      config: more settings of the session.

    Raises:
      cli.RunError: another task is lost, another run has --logdir, etc.
    """
    task, cluster = self._task, self._task.cluster
    built = self._built
    if built is None:
      raise cli.UsageError(
        'session() before minimize(): nothing would train; the step is made by '
        'train_op, loss = task.minimize(build_loss), with the optimizer of '
        '--optimizer'
      )
    script_checks.check_session(last_step, hooks)
    end_step = _ENDLESS if last_step is None else last_step
    script_checks.check_places(cluster)
    task.stalls.busy('the reading of the log directory')
    folder = run_folder.RunFolder(task, end_step)
    with contextlib.ExitStack() as at_end:
      folder.claim(None, at_end)
      task.serve()
      task.stalls.busy('the reading of the log directory')
      folder.sign()
      at_end.enter_context(task_metrics.kept(task))
      if late_start.has_ended(cluster, folder.restart, task.stop.wait):
        self._end_late(folder)
      task.stalls.busy('the building of the graph', may_fail=False)
      _log.info(
        f'{cluster_lib.describe(cluster, self._rule)}; '
        + (
          'until the loop ends'
          if last_step is None
          else f'{last_step} global steps'
        )
      )
      if cluster.is_chief:
        for line in (
          *worker_graph.describe_groups(built),
          *idle_flags.describe(
            self._rule, self._strategy, False, groups=self._groups
          ),
        ):
          _log.info(line)
      with (
        late_start.noticed(cluster, folder.restart, task.stop.wait) as end,
        shutdown.reporting_end_to_ps(cluster, task.server, task.stop),
      ):
        yield from self._run(built, end_step, folder, hooks, config)
      if end.is_late:
        self._end_late(folder)
      if not self._has_begun:
        raise stop_request.StoppedError  # While it waited for the others.
      task.watchdog.close()
      task.stalls.busy('the report')
      with cli.amid_run():
        self._report(folder)
    task.stalls.idle()
    if self._exit:
      raise self._exit

  def _end_late(self, folder: run_folder.RunFolder) -> NoReturn:
    """Ends the script without an error: nothing is left to train."""
    task = self._task
    task.stop.note_unsaved(None)
    if unreported := folder.find_unreported():
      logdir, path = unreported
      step_v = checkpoints.read_step(path)
      workers = final_report.read_workers(logdir, task.watchdog.life)
      self._publish(folder, step_v, None, workers)
    else:
      _log.info(f'{folder.restart.describe_end()}: nothing is left to do')
    raise stop_request.StoppedError

  def _run(
    self,
    built: step.Step,
    last_step: int,
    folder: run_folder.RunFolder,
    own_hooks: Sequence[tf.train.SessionRunHook],
    config: tf.ConfigProto | None,
  ) -> Iterator[tf.train.MonitoredSession]:
    """Yields the session; tells the chief once it is closed."""
    task, strategy, cluster = self._task, self._strategy, self._task.cluster
    # What each worker has of its own is kept if a ps is lost.
    kept = self._own_local + [
      v
      for v in tf.local_variables()
      if not any(v is other for other in self._all_local)
    ]
    own_step_hook.keep_tables_and_queues(tf.get_default_graph())
    state = worker_loop.RuleState(task, strategy)
    others = shutdown.Others(cluster, task.server, task.watchdog.secs_silent)
    self._stats = stats = report.WorkerStats(
      cluster.task_index, life=task.watchdog.life, start=time.time()
    )
    last, telemetry = self._make_telemetry(built, last_step, folder)
    saves = None
    if cluster.is_chief:
      saves = save_hook.make(task, folder, last, state, others)
    stop = stop_hook.StopHook(
      *(last, self.global_step, last_step, task.stop),
      *(others.is_stop_for_all, strategy.request_stop),
      save=saves.save_last if saves else lambda session: None,
      metrics=task.metrics,
    )
    stats.sessions = stop.sessions
    first_step = run_folder.FirstStep(
      *(folder.path, folder.images), find_step=lambda: stop.sessions[-1][0]
    )
    self._end = end = end_hook.EndHook(
      *(task, others, strategy, lambda: last_step, saves, self._read_last),
      is_own_loop=True,
    )
    hooks = worker_loop.order_hooks(
      liveness=state.make_liveness(),
      steps=last,
      rule=state.hooks,
      stop=stop,
      telemetry=telemetry,
      own=list(own_hooks),
      save=saves and [first_step, saves],
      end=end,
    )
    scaffold = session_lib.ClusterScaffold(
      *(task, folder.restart, state.saver, state.hooks, kept),
      before_restore=saves.end_beside if saves else lambda: None,
    )
    server_lib.log_placement(tf.get_default_graph())
    first = session_lib.make_session(task, scaffold, hooks, config)
    with cli.amid_run(), first as session:
      self._has_begun = True
      self._session, self._last = session, last
      try:
        yield session
      except (tf.errors.OutOfRangeError, StopIteration) as error:
        # The session takes these for the end of its work.
        step_v = last.last.get('global_step', 'the first')
        of_all = '' if last_step == _ENDLESS else f' of {last_step}'
        where = f'at step {step_v}{of_all}'
        _log.info(script_errors.describe_end(error, cluster.name, where))
        end.outlast(session)
        raise
      except SystemExit as leaving:
        if leaving.code:
          raise cli.RunError(
            f'the loop of {cluster.name} calls sys.exit({leaving.code!r})'
          ) from leaving
        self._exit = leaving  # Once all know that this loop has ended.
      finally:
        self._session = None
      step_v = stop.sessions[-1][1]
      if stop.is_told and not cluster.is_chief:
        _log.info(f'{CHIEF} has ended the training: this loop ends, too')
      elif step_v < last_step and not task.stop.is_requested:
        end.end_for_all(step_v, last_step)
    if not (cluster.is_chief or task.stop.is_requested):
      others.send_stats(stats)

  def _make_telemetry(
    self, built: step.Step, last_step: int, folder: run_folder.RunFolder
  ) -> tuple[own_step_hook.OwnStepHook, worker_loop.TelemetryHook]:
    """Returns (own_step_hook.OwnStepHook, worker_loop.TelemetryHook).

    Both are of `train`, but for what a step is known by: here it is the loss,
    the outputs of build_loss() that are single numbers, and what the script's
    own tf.summary ops make.
    """
    stats = self._stats
    tensors, constants = worker_graph.split_metrics(built)
    if not folder.summary_dir:
      built = built._replace(metrics={})
    summaries = worker_summaries.from_flags(
      folder.summary_dir, built.learning_rate, built.metrics
    )
    last = own_step_hook.OwnStepHook(
      built.metrics | tensors,
      self.global_step,
      own_step_hook.OwnState(tf.get_default_graph()),
      self._merge_summaries(built) if self.is_chief else None,
      lambda: summaries.is_due(stats.local_steps + 1),
    )
    batches = own_step_hook.OwnBatches(
      self._strategy.batches_per_update,
      self._strategy.push_period,
      None if last_step == _ENDLESS else last_step,
    )
    self._progress = progress.Progress(
      *(stats, last, constants, batches, self._console, summaries),
      batches.unit,
      self._task.metrics,
    )
    return last, worker_loop.TelemetryHook(
      self._task, folder, stats, self._progress
    )

  def _merge_summaries(self, built: step.Step) -> tf.Tensor | None:
    """Returns the merge of the script's own summaries of a step, or None."""
    given = tf.get_collection(tf.GraphKeys.SUMMARIES)
    found = own_step_hook.keep_runnable(
      given, [built.update.train_op, built.loss]
    )
    for left_out in (x for x in given if all(x is not y for y in found)):
      _log.info(
        f'the summary {left_out.op.name!r} is not written: it needs what a '
        'step does not read'
      )
    return tf.summary.merge(found) if found else None

  def _read_last(self, session: tf.Session) -> None:
    """Reads the last step, once all is trained and saved."""
    self._last_step = int(session.run(self.global_step))

  def _report(self, folder: run_folder.RunFolder) -> None:
    """Logs how the run ended; the chief writes its report."""
    if self._task.stop.is_requested:
      worker_loop.log_stop(self._progress)
    elif self.is_chief:
      loss = self._progress.final_loss
      workers = [self._stats, *self._end.workers]
      self._publish(folder, self._last_step, loss, workers)

  def _publish(
    self,
    folder: run_folder.RunFolder,
    step_v: int,
    loss: float | None,
    workers: Sequence[report.WorkerStats],
  ) -> None:
    """Writes the report of a run that ended at `step_v`; see final_report."""
    outcome = final_report.NOT_JUDGED | {
      'unit': own_step_hook.OwnBatches.unit,
      'global_step': step_v,
      'tables': {},
      'final_loss': loss,
      'train_secs': workers[0].train_secs,
      'total_secs': time.monotonic() - self._start,
    }
    final_report.publish(
      *(outcome, workers, self._strategy, self.num_workers, folder.path),
      ends='session(last_step)',
      more='a larger last_step of session()',
    )


def _find_metrics(
  loss: tf.Tensor, outputs: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
  """Returns {name: float scalar tensor}, the outputs that each step has."""
  numbers = {
    name: x
    for name, x in outputs.items()
    if tf.is_tensor(x) and x.dtype.is_floating and x.shape.rank == 0
  }
  kept = own_step_hook.keep_runnable(list(numbers.values()), [loss])
  return {n: x for n, x in numbers.items() if any(x is y for y in kept)}


def run(train: Callable[[WorkerTask], Any], script: str | None = None) -> int:
  """Runs the task that the flags name; returns its exit code.

  Args:
    train: what a worker runs.
    script: the path of the file that has it; by default train's own.

  Raises:
    cli.UsageError: a flag contradicts the others, or does not fit this program.
  """
  # What the first lines of the script may have switched.
  distmnist.runtime.restore_behavior()
  # The script prints, too.
  console = console_lib.Console(task_metrics.secs_from_flags(), draws=False)
  console_lib.print_logs(console.say)
  script = script or train.__code__.co_filename
  script_checks.check_flags(script)
  run_flags.leave_out(script_checks.find_unread(script))
  task = task_lib.from_flags()
  task.log_role()
  cluster = task.cluster
  if cluster.job_name == 'evaluator':
    raise cli.UsageError(
      '--job_name=evaluator: expected ps or worker, as this script has a '
      'loop of its own'
    )
  if cluster.job_name == 'ps':
    task.serve()
    with task_metrics.kept(task):
      return ps.run_ps(task)
  with (
    tf.Graph().as_default(),
    contextlib.suppress(stop_request.StoppedError),
    script_errors.explained(script),
  ):
    try:
      worker = WorkerTask(task, console)
      with script_calls.taken_over(worker):
        train(worker)
    except SystemExit as leaving:
      if leaving.code:
        raise
  task.stalls.busy('the end')
  return task.stop.end()
