"""What the flags of a worker ask for, checked before its server starts.

check_flags.py and plan.py use the same checks without training.
"""

import os
from typing import NamedTuple

from absl import flags

from distmnist.common import cli, registry
from distmnist.common.names import MIN_WORKERS, STRATEGIES
from distmnist.exchange.strategy import Strategy
from distmnist.logdir import history, logdirs
from distmnist.nn import optimizer_checks, schedules
from distmnist.training import chief, schedule
from distmnist.training.hooks import startup_hook, trace_hook
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import table_checks

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


class Choice(NamedTuple):
  """What is trained, and how.

  Attributes:
    rule: str, the name of the strategy.
    strategy: strategy.Strategy.
    problem: problem.Problem.
    traced_steps: list of int, from --trace_steps.
    plan: schedule.Plan; None if the data are not known.
    start_step: int, the global step at which this worker begins.
  """

  rule: str
  strategy: Strategy
  problem: problem_lib.Problem
  traced_steps: list
  plan: schedule.Plan | None = None
  start_step: int = 0


def check(cluster, num_images, num_validation_images):
  """Returns the Choice of a worker.

  Args:
    cluster: cluster.Cluster.
    num_images: int, the size of the training split.
    num_validation_images: int, the size of the validation split.

  Raises:
    cli.UsageError: a flag contradicts the others, the cluster or the data.
  """
  choice = check_without_data(cluster)
  plan = schedule.make_plan(
    cluster, choice.strategy, num_images, choice.problem.unit
  )
  start = startup_hook.find_start(cluster, plan.last_step)
  chief.check_flags(logdirs.from_flags(), num_validation_images)
  return choice._replace(plan=plan, start_step=start)


def check_without_data(cluster):
  """Returns the part of a worker's Choice that needs no data.

  Raises:
    cli.UsageError: a flag contradicts the others or the cluster.
  """
  rule, strategy = make_strategy(cluster)
  check_min_workers(rule, strategy, os.environ)
  startup_hook.check_rule(cluster, strategy)
  problem = problem_lib.from_flags()
  logdir = logdirs.from_flags()
  traced_steps = trace_hook.steps_from_flags(logdir)
  schedule.check_flags()
  history.check_flags(logdir)
  schedules.check_flags()
  optimizer_checks.check_flags(strategy)
  problem.check_flags()
  table_checks.settle(problem, strategy)
  return Choice(rule, strategy, problem, traced_steps)


def check_min_workers(rule, strategy, environ):
  """Raises cli.UsageError if a lost worker would hold up all others.

  Args:
    rule: str, the strategy's name.
    strategy: strategy.Strategy.
    environ: dict, where a launcher may say that fewer workers are enough.
  """
  if strategy.waits_for_all and environ.get(MIN_WORKERS):
    raise cli.UsageError(
      f'--min_workers={environ[MIN_WORKERS]} of the launcher, but under'
      f' {rule} all workers wait for one that is lost: leave it out, or take'
      ' an asynchronous rule such as async_sgd'
    )


def make_strategy(cluster):
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
