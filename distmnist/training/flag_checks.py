"""What the flags of a worker ask for, checked before its server starts.

check_flags.py and plan.py use the same checks without training.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from distmnist.common import cli, refusals, registry
from distmnist.common.names import MIN_WORKERS, STRATEGIES
from distmnist.common.refusals import Refusal
from distmnist.logdir import (
  history,  # noqa: F401  Its flag.
  logdirs,
)
from distmnist.nn import optimizer_checks, schedules
from distmnist.training import (
  chief,
  schedule,
)
from distmnist.training.hooks import startup_hook, tracer
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import table_checks
from distmnist.transport.strategy import Strategy

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

_STRATEGY = flags.DEFINE_enum(
  'strategy',
  'async_sgd',
  registry.names(STRATEGIES),
  'The distributed update rule.',
)
_SYNC_REPLICAS = flags.DEFINE_bool(
  'sync_replicas', False, 'Short for --strategy=sync_sgd.'
)

registry.load_all(STRATEGIES)

FLAGS = flags.FLAGS

# What no loop can do, a script's own neither. Facts: rule, str; strategy,
# strategy.Strategy; min_workers, str or None, what a launcher says is enough.
OF_RULE = (
  Refusal(
    lambda f: f'--min_workers={f.min_workers}',
    lambda f: f.min_workers and f.strategy.waits_for_all,
    lambda f: (
      f' of the launcher, but under {f.rule} all workers wait for one that is '
      'lost: leave it out, or take an asynchronous rule such as async_sgd'
    ),
  ),
  *optimizer_checks.REFUSALS,
)
# What our own loop cannot do. Facts: those of OF_RULE, and cluster,
# cluster.Cluster; logdir, str or None; num_validation_images, int or None, not
# yet known.
_OF_LOOP = (
  Refusal(
    'startup_delay_steps',
    lambda f: (
      FLAGS.startup_delay_steps
      and f.cluster.num_workers > 1
      and _waits_for_others(f.strategy)
    ),
    ', but under this rule workers wait for each other: leave it out, or take '
    'an asynchronous rule such as async_sgd',
  ),
  Refusal(
    'epochs',
    lambda f: FLAGS.epochs == 0,
    ': expected more than 0, such as 0.5',
  ),
  Refusal(
    'history',
    lambda f: FLAGS.history and not f.logdir,
    ' needs a --logdir to write to',
  ),
  Refusal(
    lambda f: refusals.show(
      'validation_steps'
      if FLAGS.validation_steps
      else 'early_stopping_patience'
    ),
    lambda f: chief.validates() and f.num_validation_images == 0,
    ' needs a validation split: --validation_images > 0, or what '
    "load('validation') of a --problem gives",
  ),
  Refusal(
    'lr_schedule',
    lambda f: (
      FLAGS.lr_schedule == 'plateau'
      and f.cluster.is_chief
      and not chief.validates()
    ),
    ' goes by evaluations on the validation split, and there are none: give '
    '--validation_steps, such as -1 for one an epoch',
  ),
  Refusal(
    'early_stopping_patience',
    lambda f: FLAGS.early_stopping_patience and not f.logdir,
    ' needs --logdir: the best checkpoint is kept there',
  ),
)


def _waits_for_others(strategy: Strategy) -> bool:
  """Whether a worker cannot start long after the others."""
  # If an update takes the gradients of several workers or, as under ssp, none
  # may be far ahead of a worker that has not made a step.
  is_shared = strategy.batches_per_update > strategy.push_period
  return strategy.is_lock_step or strategy.waits_for_all or is_shared


class Draft(NamedTuple):
  """The part of a Choice that is known without data."""

  rule: str
  strategy: Strategy
  problem: problem_lib.Problem
  traced_steps: list[int]


class Choice(NamedTuple):
  """What is trained, and how.

  Attributes:
    rule: the name of the strategy.
    traced_steps: from --trace_steps.
    start_step: the global step at which this worker begins.
  """

  rule: str
  strategy: Strategy
  problem: problem_lib.Problem
  traced_steps: list[int]
  plan: schedule.Plan
  start_step: int = 0


def check(
  cluster: cluster_lib.Cluster, num_images: int, num_validation_images: int
) -> Choice:
  """Returns the Choice of a worker.

  Args:
    num_images: the size of the training split.
    num_validation_images: the size of the validation split.

  Raises:
    cli.UsageError: a flag contradicts the others, the cluster or the data.
  """
  draft = check_without_data(cluster, num_validation_images)
  plan = schedule.make_plan(
    cluster, draft.strategy, num_images, draft.problem.unit
  )
  # Only whether the rate can fall up to the last step.
  per_update = plan.images_per_update / plan.images_per_epoch
  schedules.from_flags(1, per_update, plan.dealing.known_last_step)
  start = startup_hook.find_start(cluster, plan.last_step)
  return Choice(*draft, plan, start)


def check_without_data(
  cluster: cluster_lib.Cluster, num_validation_images: int | None = None
) -> Draft:
  """Returns the part of a worker's Choice that needs no data.

  Args:
    num_validation_images: None if it is not known.

  Raises:
    cli.UsageError: a flag contradicts the others or the cluster.
  """
  rule, strategy = make_strategy(cluster)
  logdir, problem = logdirs.from_flags(), problem_lib.from_flags()
  refusals.refuse(
    (*OF_RULE, *optimizer_checks.OF_ONE, *_OF_LOOP),
    cluster=cluster,
    rule=rule,
    strategy=strategy,
    groups=problem.groups,
    min_workers=os.environ.get(MIN_WORKERS),
    logdir=logdir,
    num_validation_images=num_validation_images,
  )
  traced_steps = tracer.steps_from_flags(logdir)
  schedules.check_flags()
  problem.check_flags()
  table_checks.settle(problem, strategy)
  return Draft(rule, strategy, problem, traced_steps)


def make_strategy(cluster: cluster_lib.Cluster) -> tuple[str, Strategy]:
  """Returns (name, strategy.Strategy) as the flags choose it.

  Raises:
    cli.UsageError: the flags do not fit, or the rule's file makes no Strategy.
  """
  name = _STRATEGY.value
  if _SYNC_REPLICAS.value:
    if flags.FLAGS['strategy'].present and name != 'sync_sgd':
      raise cli.UsageError(
        f'--sync_replicas is --strategy=sync_sgd, and --strategy={name} is '
        'given, too: leave one of them out'
      )
    name = 'sync_sgd'
  module = registry.load(STRATEGIES, name)
  if not hasattr(module, 'make'):
    raise cli.UsageError(
      f'--strategy={name}: {module.__name__} has no make(cluster), which '
      'returns the strategy.Strategy of a rule'
    )
  made = module.make(cluster)
  if not isinstance(made, Strategy):
    raise cli.UsageError(
      f'--strategy={name}: expected that make(cluster) of {module.__name__} '
      f'returns a strategy.Strategy, not {type(made).__name__}'
    )
  return name, made
