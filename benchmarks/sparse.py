"""Sparse tables beside the classic script: the same batch, table and machine.

  python benchmarks/sparse.py [--rows=100000,1000000] [--workers=1,2]
      [--steps=100] [--repeats=5]

A batch has 256 examples with 26 ids each, drawn by Zipf's law (1.2) and spread
over the table; rows have 64 numbers; Adagrad, two ps. `classic` is
tf.nn.embedding_lookup on a variable split over the two ps under
replica_device_setter; `tables` is layers.embedding under async_sgd, and `ten`
the same with ten steps a session.run. All servers are processes of their own on
127.0.0.1, each with one thread within an op and two ops at a time; those of
`classic` have TensorFlow's and gRPC's own settings otherwise, the others those
of train.

All kinds run in turn, alternating which is first; a ratio is to the
neighbouring run of `classic`. The output has the medians of the repeats, the
least and the largest ratio, and the bytes that a step moves.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import argparse
import contextlib
import itertools
import multiprocessing
import os
import statistics
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import probing, server
from distmnist.common import ports
from distmnist.data import step_rows
from distmnist.exchange.steps import fused_steps
from distmnist.nn import layers, optimizers
from distmnist.strategies import async_sgd
from distmnist.transport import sharding

BATCH, NUM_IDS, WIDTH, NUM_PS, RATE = 256, 26, 64, 2, 0.05
# The steps of a session.run.
KINDS = {'classic': 1, 'tables': 1, 'ten': 10}
# The kinds that share servers.
GROUPS = [['classic'], ['tables', 'ten']]
# Batches drawn beforehand, and steps that are not counted.
_NUM_BATCHES, _WARM_UP = 20, 10
# What a process tells gRPC: see distmnist/runtime.py.
_GRPC_OPTIONS = 'TF_GRPC_DEFAULT_OPTIONS'
# How often all workers wait for each other in `_run`.
_NUM_WAITS = 3


def draw_ids(num_rows, worker):
  """Returns int64 [batches, 256, 26], the ids of a worker."""
  rng = np.random.default_rng(worker)
  drawn = rng.zipf(1.2, [_NUM_BATCHES, BATCH, NUM_IDS]).astype(np.uint64)
  spread = drawn * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)
  return (spread % np.uint64(num_rows)).astype(np.int64)


def build(kind, member, num_rows):
  """Builds a run of steps; returns (ids to feed, fetches, bytes or None)."""
  start = tf.random_uniform_initializer(-0.1, 0.1)
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    fed = step_rows.build(BATCH * NUM_IDS - 1)
    ids = tf.reshape(fed.row, [BATCH, NUM_IDS])
    if kind != 'classic':
      rule = async_sgd.AsyncSgd(member)
      with sharding.sharded(NUM_PS), rule.scope():
        rows = layers.embedding(
          ids, num_rows, WIDTH, 'table', None, None, start
        )
        loss = build_loss(rows)

      def make_optimizer():
        return optimizers.make_optimizer('adagrad', RATE)

      update = rule.minimize(loss, make_optimizer, global_step)
      steps = {'global_step': update.train_op}
      run = fused_steps.Steps(steps, KINDS[kind]).before_run(None)
      num_bytes = update.bytes_pulled + update.bytes_pushed
      return fed.fed, run.fetches, num_bytes
    table = tf.get_variable(
      'classic_table',
      [num_rows, WIDTH],
      initializer=start,
      partitioner=tf.fixed_size_partitioner(NUM_PS),
    )
    loss = build_loss(tf.nn.embedding_lookup(table, ids, 'mod'))
    optimizer = tf.train.AdagradOptimizer(RATE)
    return fed.fed, optimizer.minimize(loss, global_step), None


def build_loss(rows):
  """A linear model of the sum of the rows of an example."""
  w = tf.get_variable('w', [WIDTH, 1], initializer=tf.ones_initializer())
  return tf.reduce_mean((tf.reduce_sum(rows, 1) @ w - 1) ** 2)


def serve(hosts, job_name, index, kinds):
  """Serves as a ps until it is terminated; arguments as of `_start_server`."""
  member = cluster_lib.make_cluster(*hosts, job_name, index)
  _start_server(member, kinds)
  threading.Event().wait()


def _start_server(member, kinds):
  """Starts the tf.train.Server of a cluster.Cluster for a list of KINDS."""
  config = tf.ConfigProto()
  if 'classic' not in kinds:
    flags.FLAGS([''])
    config = server.make_server_config()
  config.intra_op_parallelism_threads = 1
  config.inter_op_parallelism_threads = 2
  return tf.train.Server(
    member.spec(), member.job_name, member.task_index, config=config
  )


def work(hosts, index, kinds, num_rows, how, ready, told):
  """Trains as a worker; reports (kind, seconds, bytes a step) of each run.

  Args:
    hosts: (ps_hosts, worker_hosts).
    index: int.
    kinds: list of KINDS; of the others it only waits for the end.
    num_rows: int.
    how: (steps, repeats), int.
    ready: multiprocessing.Barrier of all workers.
    told: multiprocessing.Queue.
  """
  member = cluster_lib.make_cluster(*hosts, 'worker', index)
  mine = _start_server(member, kinds)
  while probing.find_silent({host: host for host in itertools.chain(*hosts)}):
    threading.Event().wait(0.1)
  batches, runs = draw_ids(num_rows, index), {}
  for kind in kinds:
    with tf.Graph().as_default():
      fed, fetches, moved = build(kind, member, num_rows)
      if index == 0:
        with tf.Session(mine.target) as first:
          first.run(tf.global_variables_initializer())
      runs[kind] = tf.Session(mine.target), fed, fetches, moved
  for repeat in range(how[1]):
    for kind in KINDS if repeat % 2 else reversed(KINDS):
      if kind in runs:
        rows = batches.reshape(-1, KINDS[kind], BATCH * NUM_IDS)
        secs, moved = _run(*runs[kind], rows, how[0], ready)
        told.put((kind, secs, moved))
      else:
        for _ in range(_NUM_WAITS):
          ready.wait()


def _run(session, fed, fetches, num_bytes, rows, num_steps, ready):
  """Returns (seconds, bytes a step or 0) of `num_steps` steps.

  Args:
    session, fed, fetches, num_bytes: see `build`.
    rows: int64 [runs, steps of a run, ids of a step].
    num_steps: int.
    ready: see `work`.
  """

  def run(steps):
    for number in range(steps // rows.shape[1]):
      session.run(fetches, {fed: rows[number % len(rows)]})

  ready.wait()
  run(_WARM_UP)
  ready.wait()
  start = time.perf_counter()
  run(num_steps)
  secs = time.perf_counter() - start
  ready.wait()
  if num_bytes is None:
    return secs, 0
  return secs, int(session.run(num_bytes, {fed: rows[0]}))


def measure(num_workers, num_rows, num_steps, num_repeats):
  """Returns {kind: [(examples/s of all workers, bytes a step)]}."""
  context = multiprocessing.get_context('spawn')
  ready = context.Barrier(num_workers * len(GROUPS))
  how, told = (num_steps, num_repeats), context.Queue()
  of_train = os.environ[_GRPC_OPTIONS]
  with contextlib.ExitStack() as stack:
    processes = []
    for kinds in GROUPS:
      held = [
        stack.enter_context(s) for s in ports.hold_ports(NUM_PS + num_workers)
      ]
      found = [f'127.0.0.1:{s.getsockname()[1]}' for s in held]
      hosts = tuple(found[:NUM_PS]), tuple(found[NUM_PS:])
      more = kinds, num_rows, how, ready, told
      given = [(serve, (hosts, 'ps', i, kinds)) for i in range(NUM_PS)]
      given += [(work, (hosts, i, *more)) for i in range(num_workers)]
      options = 'grpc.minimal_stack=0' if 'classic' in kinds else of_train
      processes += [
        (context.Process(target=target, args=args), options)
        for target, args in given
      ]
    try:
      for process, options in processes:
        os.environ[_GRPC_OPTIONS] = options
        process.start()
      speeds = {kind: [] for kind in KINDS}
      for _ in range(num_repeats * len(KINDS)):
        # All workers end a run before any begins the next one.
        results = [told.get(timeout=600) for _ in range(num_workers)]
        speed = sum(BATCH * num_steps / secs for _, secs, _ in results)
        moved = statistics.mean(moved for *_, moved in results)
        speeds[results[0][0]].append((speed, moved))
    finally:
      for process, _ in processes:
        process.terminate()
        process.join()
  return speeds


def compare(num_workers, num_rows, num_steps, num_repeats):
  """Returns the line of a table: medians, and the ratios in each repeat."""
  found = measure(num_workers, num_rows, num_steps, num_repeats)
  classic, *others = ([speed for speed, _ in found[kind]] for kind in KINDS)
  moved = statistics.median(moved for _, moved in found['tables'])
  cells = [
    f'{num_workers:7}  {num_rows:11,}  {statistics.median(classic):9,.0f}'
  ]
  for speeds in others:
    ratios = [b / a for a, b in zip(classic, speeds, strict=True)]
    cells.append(
      f'{statistics.median(speeds):8,.0f}  {statistics.median(ratios):5.2f} '
      f'[{min(ratios):.2f} {max(ratios):.2f}]'
    )
  return '  '.join([*cells, f'{moved / 1000:9,.0f}'])


def _parse_numbers(text):
  return [int(word) for word in text.split(',')]


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=_parse_numbers, default=[10**5, 10**6])
  parser.add_argument('--workers', type=_parse_numbers, default=[1, 2])
  parser.add_argument('--steps', type=int, default=100)
  parser.add_argument('--repeats', type=int, default=5)
  given = parser.parse_args()
  print(
    'workers         rows  classic/s  tables/s  ratio [min  max]      ten/s'
    '  ratio [min  max]  KB a step'
  )
  for num_workers in given.workers:
    for num_rows in given.rows:
      line = compare(num_workers, num_rows, given.steps, given.repeats)
      print(line, flush=True)


if __name__ == '__main__':
  main()
