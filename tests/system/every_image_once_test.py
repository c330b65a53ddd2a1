"""Each training image is read exactly once an epoch, whatever the rule.

Workers of different speeds on real servers in this process, with the program's
own plan, table, batches and hooks; also in short lives from checkpoint to
checkpoint, and against a run that was never interrupted.
"""

import collections
import threading
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import train  # noqa: F401  It has --seed.
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.data import input_pipeline, seeds, split, step_rows
from distmnist.exchange.steps import fused_steps, graph_warmup
from distmnist.nn import optimizers
from distmnist.training import schedule
from distmnist.training.batches import batch_source, dispatcher
from distmnist.training.hooks import batch_hook, stop_hook
from distmnist.transport import sharding
from tests.strategies import battery_test
from tests.support import in_process

NUM_IMAGES = 118  # In batches of 4: epochs end within a batch.
BATCH = 4
FLAGS = (
  f'--batch_size={BATCH}',
  '--communication_period=2',
  '--n_push=2',
  '--seed=3',
)
QUICK = 'async_sgd'
# Two of the others: test_short_lives_together_read_each_batch_once.
RULES = [
  (name, num_workers)
  for name in battery_test.RULES
  for num_workers in ((1, 2, 3) if name == QUICK else (1, 3))
]
each_rule = pytest.mark.parametrize(
  'name, num_workers',
  [
    pytest.param(
      *case,
      marks=() if case == (QUICK, 2) else pytest.mark.slow,
    )
    for case in RULES
  ],
)


class Reads:
  """Stands for history.History; counts the tickets that were run."""

  def __init__(self):
    self.tickets = []

  def write(self, event, tickets, **fields):
    del fields
    if event == 'ran':
      self.tickets += tickets


class NobodyIsLost:
  def find(self):
    return []


def train_worker(name, cluster, index, logdir, all_ended):
  """One life of a worker; returns {tickets, steps, c of the chief}."""
  member = cluster.worker(index)
  seeds.set_seed(3, index)
  warmup = graph_warmup.Warmup(member.cpu_device)
  rule = registry.load(STRATEGIES, name).make(member)
  plan = schedule.make_plan(member, rule, NUM_IMAGES)
  images = np.zeros([NUM_IMAGES, 1, 1, 1], np.uint8)
  _, labels, _ = input_pipeline.build_batches(
    split.Split(images, np.arange(NUM_IMAGES, dtype=np.int32)),
    lambda x, y, is_training: (x, y),
    BATCH,
    member.cpu_device,
    warmup if rule.needs_warmup else None,
  )
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    with sharding.sharded(member.num_ps), rule.scope():
      c = tf.convert_to_tensor(
        tf.get_variable('c', [3], initializer=tf.zeros_initializer())
      )
    goal = tf.reduce_mean(tf.cast(labels, tf.float32)) / NUM_IMAGES
    loss = tf.reduce_sum((c - goal) ** 2)
    table = dispatcher.Table(global_step, plan.dealing, index)
    if not plan.dealing.is_lock_step:
      rule.mark_by(table.build_mark)

    def make_optimizer(is_local=False, rate_factor=None):
      factor = 1 if rate_factor is None else rate_factor
      return optimizers.make_optimizer('sgd', (0.1 + 0.1 * is_local) * factor)

    update = rule.minimize(loss, make_optimizer, global_step)
  assert table.is_marked
  reads, stop, result = Reads(), in_process.NoStop(), {}
  [rows] = step_rows.get_all()
  source = batch_source.BatchSource(
    plan.dealing,
    split.Split(np.arange(NUM_IMAGES), np.arange(NUM_IMAGES)),
    3,
    index,
    rows.fed,
    reads,
  )
  steps = fused_steps.make(
    {'global_step': update.train_op},
    source,
    {},
    warmup if rule.needs_warmup else None,
  )
  saver = tf.train.Saver()

  def at_end(session):
    all_ended.wait(in_process.DEADLINE_SECS)
    result['steps'] = int(session.run(global_step))
    if index == 0:
      result['c'] = session.run(c).tolist()
      if logdir:
        path = f'{logdir}/model.ckpt'
        saver.save(session, path, result['steps'], write_meta_graph=False)

  task = types.SimpleNamespace(
    watchdog=in_process.NoWatchdog(), stalls=in_process.make_stalls(), stop=stop
  )
  all_hooks = [
    steps,
    *rule.hooks(stop),
    table.hook(),
    stop_hook.StopHook(steps, global_step, table.find_end, stop, lambda: False),
    batch_hook.BatchHook(
      source, table, steps, rule, NobodyIsLost(), lambda: False, task
    ),
    in_process.AtEnd(at_end),
  ]
  pause = threading.Event()
  with cluster.make_session(index, all_hooks, logdir) as session:
    while not session.should_stop():
      pause.wait(0.004 * index)  # Workers of different speeds.
      session.run([])
  return {**result, 'tickets': reads.tickets}


def run_life(name, cluster, logdir=None):
  all_ended = threading.Barrier(cluster.num_workers)
  return cluster.run_workers(
    lambda index: train_worker(name, cluster, index, logdir, all_ended)
  )


def count_reads(results):
  return collections.Counter(t for r in results for t in r['tickets'])


@pytest.mark.daily(but=['async_sgd-2', 'ring_allreduce-3'])
@pytest.mark.slow
@each_rule
def test_each_batch_of_two_epochs_is_read_once(
  make_cluster, set_flags, name, num_workers
):
  set_flags(*FLAGS, '--epochs=2', '--steps_per_run=3', '--max_staleness=99')
  num_ps = battery_test.count_ps(name, 1)
  results = run_life(name, make_cluster(num_ps, num_workers))
  reads = count_reads(results)
  assert set(reads.values()) == {1}
  # 59 batches; the last update may reach into the next epoch.
  assert set(reads) == set(range(len(reads)))
  assert 59 <= len(reads) < 59 + 2 * num_workers
  assert len({result['steps'] for result in results}) == 1


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [name for name in battery_test.RULES if battery_test.needs_ps(name)]
)
def test_short_lives_together_read_each_batch_once(
  make_cluster, set_flags, name, tmp_path
):
  reads, steps = collections.Counter(), 0
  # The cluster changes its shape from life to life.
  for life, num_workers in enumerate((2, 1, 2, 3), 1):
    cluster = make_cluster(1, num_workers)
    set_flags(*FLAGS, f'--train_steps={5 * life}', '--max_staleness=99')
    results = run_life(name, cluster, str(tmp_path))
    cluster.reset()
    reads += count_reads(results)
    steps = results[0]['steps']
  assert steps == 20
  assert set(reads) == set(range(len(reads)))
  assert set(reads.values()) == {1}


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', ['sync_sgd', 'sagn', 'bmuf'])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
  make_cluster, set_flags, name, tmp_path
):
  cluster = make_cluster(1, 2)
  set_flags(*FLAGS, '--train_steps=12')
  [whole, _] = run_life(name, cluster, str(tmp_path / 'whole'))
  cluster.reset()
  tickets = []
  for last_step in (5, 12):
    set_flags(*FLAGS, f'--train_steps={last_step}')
    [part, _] = run_life(name, cluster, str(tmp_path / 'parts'))
    tickets += part['tickets']
    cluster.reset()
  assert tickets == whole['tickets']
  assert part['c'] == whole['c'] and any(whole['c'])
