"""Trainings that must give the same weights, drawn at random.

A cluster in this process, with real servers, trains by the program's own graph,
batches and hooks; one process trains the same by --gradient_accumulation. What
they have in common is drawn: the net, the optimizer, clipping, weight decay,
averages, the schedule; and, for the cluster, the steps of a run and the number
of ps.

RELATIONS_SECS=600 takes more than the usual sample, and RELATIONS_SEED=N begins
with draw N, with RELATIONS_SECS=0 that one alone.
"""

import contextlib
import itertools
import os
import time
import typing

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from distmnist.cluster import cluster as cluster_lib
from distmnist.lifecycle import lost_workers
from distmnist.lifecycle import session as session_lib
from distmnist.logdir import checkpoints, restart
from distmnist.logdir import history as history_lib
from distmnist.nn import optimizers, plateau
from distmnist.training import (
  flag_checks,
  worker_graph,
  worker_loop,
)
from distmnist.training.hooks import batch_hook, stop_hook
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.support import in_process, kinds, problems

SECS = float(os.environ.get('RELATIONS_SECS', '5'))
FIRST_SEED = int(os.environ.get('RELATIONS_SEED', '0'))
FLAGS = '--batch_size=4', '--train_steps=7'
IMAGES = (
  *problems.FEW_IMAGES,
  *('--model=mlp', '--hidden_units=6', '--initializer=glorot'),
)
PROBLEM = f'--problem={kinds.__name__}'
# Without those whose averages depend on how a batch is cut.
KINDS = [name for name in kinds.NETS if name not in ('average', 'update_op')]
SEED, LARGEST = 3, 1e-5


class Relation(typing.NamedTuple):
  """A rule, and how many batches of one process are an update of it.

  Attributes:
    words: str, the flags of the rule.
    num_workers: int.
    num_batches: int; with more than 1, gradients are clipped apart.
    optimizers: tuple of str, with which it holds.
  """

  words: str
  num_workers: int = 1
  num_batches: int = 1
  optimizers: tuple = optimizers.OPTIMIZERS


LOCAL = tuple(name for name in optimizers.OPTIMIZERS if name != 'ftrl')
PERIOD = '--communication_period'
STILL = '--local_optimizer=sgd --local_learning_rate=0'
SCHEDULES = (
  '--lr_schedule=constant',
  '--lr_schedule=exponential --lr_decay_steps=3 --lr_decay_rate=0.5',
  '--lr_schedule=step --lr_boundaries=2,5 --lr_decay_rate=0.5',
  '--lr_schedule=step --lr_boundaries=0.05,0.11 --lr_decay_rate=0.5 '
  '--lr_schedule_unit=epochs',
  '--lr_schedule=linear_scaling --lr_warmup_steps=4',
  '--lr_schedule=cosine --lr_warmup_steps=2 --lr_decay_steps=5',
  '--lr_schedule=polynomial --lr_power=2 --lr_decay_steps=9',
  '--lr_schedule=plateau --lr_decay_rate=0.5 --validation_steps=1',
)
# What an update of one worker is where nothing is stale; the mean of several
# workers; the mean of several batches of one, whose copy stays. All kinds of
# them are among the first.
RELATIONS = [
  Relation('sync_sgd', 2, 2),
  Relation(f'agn {PERIOD}=3 {STILL}', 1, 3),
  Relation('sync_sgd --sync_barrier=shard', 2, 2),
  Relation('dc_asgd --dc_adaptive'),
  Relation('sync_sgd --replicas_to_aggregate=3', 1, 3),
  Relation(f'dynsgd {PERIOD}=1', optimizers=LOCAL),
  Relation('ring_allreduce', 2, 2),
  Relation('ssp'),
  Relation(f'sagn {PERIOD}=1', 2, 2, optimizers=LOCAL),
  Relation('downpour', optimizers=LOCAL),
  Relation(f'bmuf {PERIOD}=1 --block_momentum=0', 2, 2, optimizers=('sgd',)),
  Relation('drop_stale'),
  Relation('sync_sgd --sync_barrier=shard --max_shard_mib=0.002', 2, 2),
  Relation('async_sgd'),
  Relation(f'sagn {PERIOD}=2 {STILL}', 1, 2),
  Relation('staleness_aware'),
  Relation('ring_allreduce --bucket_mib=0.002', 2, 2),
  Relation(f'agn {PERIOD}=1', optimizers=LOCAL),
  Relation('sync_sgd'),
  Relation('dc_asgd'),
  Relation(f'bmuf {PERIOD}=1', optimizers=LOCAL),
  Relation('sync_sgd --sync_barrier=shard'),
  Relation(f'sagn {PERIOD}=1', optimizers=LOCAL),
  Relation('ringmaster'),
]


def draw(seed):
  """Returns (num_ps, num_workers, flags of the cluster, of the process)."""
  relation = RELATIONS[seed % len(RELATIONS)]
  rng = np.random.default_rng(seed)

  def choose(*values):
    return values[rng.integers(len(values))]

  optimizer = choose(*relation.optimizers)
  rate = 0.05 if optimizer in ('adagrad', 'ftrl', 'sgd') else 0.01
  words = [f'--optimizer={optimizer}', f'--learning_rate={rate}']
  if relation.num_batches == 1:  # Else each batch is clipped by itself.
    words += choose([], ['--clip_norm=0.3'])
  if optimizer != 'ftrl':
    words += choose([], ['--weight_decay=0.5'])
  words += choose([], ['--ema_decay=0.8'])
  words += choose(
    [*IMAGES, *choose([], ['--random_shift=2'])],
    [PROBLEM, f'--kinds={",".join(rng.choice(KINDS, 3, replace=False))}'],
  )
  words += choose(*map(str.split, SCHEDULES))
  if STILL in relation.words:  # Only the process has several batches at once.
    words.append('--lr_scale=2')
  num_slices = choose(1, 1, 2)
  rule = relation.words.split()
  return (
    0 if rule[0] == 'ring_allreduce' else choose(1, 2),
    relation.num_workers,
    [
      *(f'--strategy={rule[0]}', *rule[1:], *words),
      f'--gradient_accumulation={num_slices}',
      f'--steps_per_run={choose(1, 2, 3)}',
    ],
    [*words, f'--gradient_accumulation={num_slices * relation.num_batches}'],
  )


class Cut(tf.train.SessionRunHook):
  """Cuts the rate of plateau before the first step, as a chief does."""

  def begin(self):
    found = plateau.find()
    self._cut = found.build_cut() if found else []

  def after_create_session(self, session, coord):
    session.run(self._cut)


def train(member, server=None):
  """Trains as a worker; returns {name: array}, the weights and averages."""
  task = in_process.make_task(member, server)
  splits = problem_data.load_training_splits(problem_lib.from_flags())
  choice = flag_checks.check(member, *(s.num_examples for s in splits))
  strategy, last_step = choice.strategy, choice.plan.last_step
  graph = worker_graph.build(task, choice, splits[0], SEED)
  step, found = graph.step, {}
  history = history_lib.History(None)
  source = worker_graph.make_source(task, choice.plan, graph, history, SEED)
  steps, _ = worker_graph.make_steps(source, graph, has_summaries=False)
  state = worker_loop.RuleState(task, strategy)
  scaffold = session_lib.ClusterScaffold(
    *(task, restart.Restart(None, 'auto', last_step), state.saver),
    [step.table.hook(), *state.hooks],
  )

  def read(session):
    variables = step.center + step.averages
    found.update(checkpoints.fetch_whole(session, variables))

  others = lost_workers.LostWorkers(
    member, task.watchdog, task.stalls.warn_secs
  )
  hooks = [
    state.make_liveness(),
    steps,
    *state.hooks,
    *([Cut()] if member.is_chief else []),
    stop_hook.StopHook(
      *(steps, step.global_step, step.table.find_end, task.stop),
      lambda: False,
      strategy.request_stop,
    ),
    batch_hook.BatchHook(
      *(source, step.table, steps, strategy, others, lambda: False, task)
    ),
    in_process.AtEnd(read),
  ]
  with session_lib.make_session(task, scaffold, hooks) as session:
    while not session.should_stop():
      session.run([])
  return found


def find_difference(seed, make_cluster, set_flags):
  """Returns the largest difference of a number, a float, and the flags."""
  num_ps, num_workers, *both = draw(seed)
  with flagsaver.flagsaver():
    set_flags(*FLAGS, *both[0])
    cluster = make_cluster(num_ps, num_workers)
    found, *_ = cluster.run_workers(
      lambda index: train(cluster.worker(index), cluster.servers[index])
    )
    cluster.reset()
  with flagsaver.flagsaver(), tf.Graph().as_default():
    set_flags(*FLAGS, *both[1])
    expected = train(cluster_lib.Cluster())
  assert found.keys() == expected.keys()
  differences = [np.abs(found[name] - expected[name]).max() for name in found]
  return max(differences), f'{num_ps} ps: {" ".join(both[0])}'


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(300 + 2 * SECS)
def test_a_cluster_trains_as_one_process(make_cluster, set_flags):
  end = time.monotonic() + SECS
  for seed in itertools.count(FIRST_SEED):
    with repeated_by(seed):
      difference, words = find_difference(seed, make_cluster, set_flags)
      print(f'{seed}: {difference:.1e} {words}')
      assert difference < LARGEST, words
    if time.monotonic() >= end:
      break


@pytest.mark.daily(but=['adam-0.01-1-True', 'ftrl-0.001-10-False'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'rate, factor, own', [(0.01, 1, True), (0.001, 10, False)]
)
@pytest.mark.parametrize('optimizer', ['adam', 'ftrl'])
def test_groups_that_change_nothing_train_as_none(
  monkeypatch, set_flags, optimizer, rate, factor, own
):
  words = PROBLEM, '--kinds=linear,gather', f'--optimizer={optimizer}'

  def train_at(rate):
    with flagsaver.flagsaver(), tf.Graph().as_default():
      set_flags(*FLAGS, *words, f'--learning_rate={rate}')
      return train(cluster_lib.Cluster())

  expected = train_at(0.01)
  said = {'learning_rate': factor} | ({'optimizer': optimizer} if own else {})
  monkeypatch.setattr(kinds, 'groups', {'.*': said}, raising=False)
  found = train_at(rate)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)


@contextlib.contextmanager
def repeated_by(seed):
  """Prints, on an error, the command that makes the draw again."""
  try:
    yield
  except BaseException:
    print(
      f'draw {seed}: RELATIONS_SEED={seed} RELATIONS_SECS=0 .venv/bin/python '
      '-m pytest --numprocesses=0 tests/system/relations_test.py'
    )
    raise
