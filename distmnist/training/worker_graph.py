"""The graph of a worker, its checks, and what is fed to and fetched from it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.data import input_pipeline, seeds, step_rows
from distmnist.exchange import traffic as traffic_lib
from distmnist.exchange.steps import fused_steps, graph_warmup
from distmnist.nn import batch_norm, groups
from distmnist.tables import row_counts
from distmnist.training import idle_flags, schedule
from distmnist.training import step as step_lib
from distmnist.training.batches import batch_source
from distmnist.training.problems import table_checks
from distmnist.transport import sharding

if TYPE_CHECKING:
  from distmnist.exchange.steps import run_length
  from distmnist.lifecycle import task as task_lib
  from distmnist.logdir import history as history_lib
  from distmnist.training import flag_checks
  from distmnist.training.batches import dispatcher
  from distmnist.training.problems import problem_data

_log = logging.getLogger(__name__)


class WorkerGraph(NamedTuple):
  """What the hooks of a worker need from its graph.

  Attributes:
    table: of who takes which batch.
    warmup: None if the rule needs none.
    fed: int64 placeholder [num_steps, 1 + batch_size], see step_rows.StepRows.
    examples: the training data.
  """

  step: step_lib.Step
  table: dispatcher.Table
  warmup: graph_warmup.Warmup | None
  fed: tf.Tensor
  examples: problem_data.Examples


def build(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  train_split: problem_data.Examples,
  seed: int,
) -> WorkerGraph:
  """Builds the WorkerGraph in the default graph, and logs what moves."""
  cluster, strategy, plan = task.cluster, choice.strategy, choice.plan
  seeds.set_seed(seed, cluster.task_index)
  placement = step_lib.make_global_step(cluster)
  warmup = None
  if strategy.needs_warmup:
    warmup = graph_warmup.Warmup(cluster.cpu_device)
  slices = input_pipeline.build_slices(
    train_split,
    choice.problem.preprocess,
    plan.slice_size,
    plan.num_slices,
    cluster.cpu_device,
    warmup,
  )
  step = step_lib.build_step(
    cluster,
    strategy,
    choice.problem,
    slices,
    plan.images_per_update / plan.images_per_epoch,
    plan.dealing,
    placement,
  )
  if warmup:
    warmup.hold_back_changes([step.update.train_op])
    graph_warmup.keep_loops_whole(tf.get_default_graph())
  if step.table is None:
    raise ValueError('a plan has batches to deal, and the step has no table')
  _describe(task, choice, step, step.table)
  [batches] = step_rows.get_all()
  return WorkerGraph(step, step.table, warmup, batches.fed, train_split)


def make_source(
  task: task_lib.Task,
  plan: schedule.Plan,
  graph: WorkerGraph,
  history: history_lib.History,
  seed: int,
) -> batch_source.BatchSource:
  """Returns the batch_source.BatchSource of this worker."""
  return batch_source.BatchSource(
    plan.dealing,
    graph.examples,
    seed,
    task.cluster.task_index,
    graph.fed,
    history,
  )


def make_steps(
  source: batch_source.BatchSource | None,
  graph: WorkerGraph,
  has_summaries: bool,
  pace: run_length.Pace | None = None,
) -> tuple[fused_steps.Steps, dict[str, int]]:
  """Returns what runs a worker's steps, and the metrics that never change.

  Args:
    has_summaries: whether to fetch the metrics of a step too.
    pace: for --steps_per_run=auto.

  Returns:
    fused_steps.Steps with the metrics of a step, and {name: int} of those
    metrics that are the same in every step.
  """
  step = graph.step
  tensors, constants = split_metrics(step)
  last_step_tensors = step.metrics if has_summaries else {}
  steps = fused_steps.make(
    tensors,
    source,
    last_step_tensors,
    graph.warmup,
    pace,
  )
  return steps, constants


def split_metrics(
  step: step_lib.Step,
) -> tuple[dict[str, tf.Tensor], dict[str, int]]:
  """Returns what is counted of each step, and of it what never changes.

  Returns:
    {name: scalar tensor}, with `global_step` after the step, and {name: int}.
  """
  update = step.update
  metrics = {
    'global_step': update.train_op,
    'loss': step.loss,
    'staleness': update.staleness,
    'bytes_pulled': update.bytes_pulled,
    'bytes_pushed': update.bytes_pushed,
    **row_counts.find(),
  }
  tensors = {n: x for n, x in metrics.items() if tf.is_tensor(x)}
  return tensors, {n: x for n, x in metrics.items() if isinstance(x, int)}


def _describe(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  step: step_lib.Step,
  table: dispatcher.Table,
) -> None:
  """Logs what is where and what moves; checks that the center is on ps.

  Raises:
    cli.RunError: a variable of the center is not on a ps.
  """
  cluster, strategy = task.cluster, choice.strategy
  if cluster.num_ps:
    shared = [v for v in tf.global_variables() if v is not table.variable]
    sharding.check_center_is_on_ps(shared)
    _log.info(sharding.format_bytes_per_ps(shared, cluster.num_ps))
  if cluster.is_distributed:
    traffic = traffic_lib.compute_traffic(
      cluster, strategy, step.update, tf.trainable_variables()
    )
    _log.info(traffic.format())
  if cluster.is_chief:
    for line in describe_groups(step):
      _log.info(line)
    for line in table_checks.describe(choice.problem, strategy):
      _log.info(line)
    caveat = batch_norm.describe_averages(choice.rule, strategy.has_local_steps)
    for line in idle_flags.describe(
      *(choice.rule, strategy, not choice.problem.is_custom),
      *(choice.problem, choice.problem.groups),
    ):
      _log.info(line)
    if caveat:
      _log.info(caveat)


def describe_groups(step: step_lib.Step) -> list[str]:
  """Returns the lines on what moves which variables."""
  moved: dict[str, list[str]] = {}
  for name, text in step.moved_by.items():
    moved.setdefault(text, []).append(name)
  return [f'{text}: {groups.shorten(names)}' for text, names in moved.items()]


def describe_task(task: task_lib.Task, choice: flag_checks.Choice) -> str:
  """Returns the line that a worker logs when it starts."""
  cluster, plan = task.cluster, choice.plan
  return (
    f'{cluster_lib.describe(cluster, choice.rule)}; '
    f'{choice.problem.describe()}, '
    f'{plan.num_images} training {choice.problem.unit} here; '
    f'{schedule.describe_end(plan)}'
  )
