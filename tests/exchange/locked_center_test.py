"""The lock of the center: many pushes at once, what it costs, a death in it.

Also a program of one worker, for the runner: worker 1
takes the lock and never lets go; any other pushes once.
"""

import collections
import re
import signal
import sys
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import role_flags
from distmnist.cluster import server as server_lib
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies
from distmnist.nn import optimizers
from distmnist.transport import sharding, variable_lists
from tests.support import stepper
from tests.support.runner import wait_for_line

pytestmark = pytest.mark.slow

NUM_STEPS = 40
# On two ps: shards that travel together with others, and shards above 1 MiB,
# which travel by themselves.
SMALL_SIZE, LARGE_SIZE = 6, 600_000


class Counter:
  """One worker's graph: every push adds 1 to all of w.

  So after n updates all of w is n, and a worker that sees another number in it
  has looked into the middle of an update.
  """

  def __init__(
    self, member, size, max_staleness=None, apply=None, asks_first=False
  ):
    self._apply = apply or self._add
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      copies = local_copies.LocalCopies(member)
      with sharding.sharded(member.num_ps), copies.scope():
        tf.get_variable('w', [size], initializer=tf.zeros_initializer())
      kept_on_ps = []
      for shard in copies.shards:
        with tf.device(shard.device), local_copies.local_variables():
          kept_on_ps.append(
            tf.Variable(
              tf.zeros(shard.shape), name=f'kept_for_{member.task_index}'
            )
          )
      kept_here = copies.make_zeros('kept')
      center = locked_center.AtomicCenter(
        copies, global_step, kept_on_ps, kept_here, max_staleness
      )
      (w,) = copies.variables
      ones = [tf.ones_like(w)]
      unless = center.is_too_stale(ones) if asks_first else None
      self.push = center.exchange(ones, self._apply, unless)
      self.seen = [w, *kept_here, *kept_on_ps, center.pulled_step]
      self.center = [global_step, *copies.shards]
    self.hook = center.hook()

  def _add(self, pairs, staleness):
    del staleness
    return variable_lists.add_all(*reversed(list(zip(*pairs, strict=True))))


def push_together(cluster, max_staleness, size=SMALL_SIZE, asks_first=False):
  """All workers push NUM_STEPS times, as fast as they can.

  Returns:
    For each worker the list of (step before, new step, staleness) of its
    pushes; and the center at the end: (global_step, set of what is in w).
  """
  all_have_pulled = threading.Barrier(cluster.num_workers, timeout=120)
  all_are_done = threading.Barrier(cluster.num_workers, timeout=120)

  def pull(session, counter):
    *values, pulled_step = session.run(counter.seen)
    # All shards are of one update, and so is all that was kept of the pull.
    for value in values:
      np.testing.assert_array_equal(value, pulled_step)
    return int(pulled_step)

  def work(index):
    counter = Counter(
      cluster.worker(index), size, max_staleness, asks_first=asks_first
    )
    with cluster.make_session(index, [counter.hook]) as session:
      pulled_step, pushes = pull(session, counter), []
      all_have_pulled.wait()
      for _ in range(NUM_STEPS):
        new_step, staleness = map(int, session.run(counter.push))
        pushes.append((pulled_step, new_step, staleness))
        pulled_step = pull(session, counter)
        assert pulled_step == new_step
      all_are_done.wait()
      step, *shards = session.run(counter.center)
      return pushes, (int(step), set(np.concatenate(shards)))

  results = cluster.run_workers(work)
  return [pushes for pushes, _ in results], results[0][1]


@pytest.mark.daily(but=['6'])
@pytest.mark.parametrize('size', [SMALL_SIZE, LARGE_SIZE])
def test_pushes_without_a_gate_are_one_after_the_other(make_cluster, size):
  each, (step, w) = push_together(make_cluster(2, 3), None, size)
  pushes = [push for pushes in each for push in pushes]
  new_steps = [new_step for _, new_step, _ in pushes]
  assert sorted(new_steps) == list(range(1, 3 * NUM_STEPS + 1))
  assert (step, w) == (3 * NUM_STEPS, {3 * NUM_STEPS})
  for pulled_step, new_step, staleness in pushes:
    assert staleness == new_step - 1 - pulled_step
  # All had pulled at step 0 before the first push.
  assert {pushes[0][0] for pushes in each} == {0}
  assert max(staleness for *_, staleness in pushes) >= 2


@pytest.mark.parametrize(
  'asks_first', [False, pytest.param(True, marks=pytest.mark.daily)]
)
def test_what_is_dropped_leaves_no_trace(make_cluster, asks_first):
  each, (step, w) = push_together(
    make_cluster(2, 3), max_staleness=1, asks_first=asks_first
  )
  pushes = [push for pushes in each for push in pushes]
  applied = [push for push in pushes if push[2] <= 1]
  new_steps = [new_step for _, new_step, _ in applied]
  assert sorted(new_steps) == list(range(1, len(applied) + 1))
  assert (step, w) == (len(applied), {len(applied)})
  for pulled_step, new_step, staleness in applied:
    assert staleness == new_step - 1 - pulled_step
  # The third of the first three pushes is too stale, at least.
  dropped = [push for push in pushes if push[2] > 1]
  assert dropped
  for pulled_step, new_step, staleness in dropped:
    assert staleness == new_step - pulled_step


class PlainWorker(stepper.Worker):
  """Without a gate, and with the optimizers of the flags, as in training."""

  def _make_factory(self, global_step):
    return optimizers.from_flags(global_step)[0]


@pytest.mark.daily(but=['dynsgd', 'dc_asgd'])
@pytest.mark.parametrize(
  'name', ['staleness_aware', 'drop_stale', 'ringmaster', 'dynsgd', 'dc_asgd']
)
def test_what_a_push_sends_where(make_cluster, set_flags, name):
  set_flags('--optimizer=momentum', '--communication_period=1', '--dc_adaptive')
  make_rule = registry.load(STRATEGIES, name).make
  worker = PlainWorker(make_cluster(2, 1), 0, make_rule, 1000)
  sent = {}
  for _ in range(10):  # A trace now and then lacks what a ps received.
    sent |= trace_messages(worker)
  worker.session.close()
  found = collections.defaultdict(list)
  for way, num_bytes in sent.values():
    # Signals have no bytes, and what steers a branch has one.
    if num_bytes > 1:
      found[way].append(num_bytes)
  # All of it before the lock: a shard each, and pulled_step to ps 0.
  assert sorted(found.pop('worker 0 to ps 0')) == [8, 2000]
  assert found.pop('worker 0 to ps 1') == [2000]
  # Straight from each ps: a shard each, and the new step.
  assert found.pop('ps 1 to worker 0') == [2000]
  assert [b for b in found.pop('ps 0 to worker 0') if b > 8] == [2000]
  # With the lock held, one ps tells the other staleness and rate, no more.
  assert all(max(each) <= 8 for each in found.values())


def trace_messages(worker):
  """Runs a step; returns {(edge, way): (way, bytes)} of its messages."""
  trace = tf.RunMetadata()
  worker.session.run(
    worker.fetches,
    {worker.x: [1] * 1000},
    options=tf.RunOptions(
      trace_level=tf.RunOptions.FULL_TRACE,
      timeout_in_ms=1000 * stepper.DEADLINE_SECS,
    ),
    run_metadata=trace,
  )
  task = r'/job:(\w+)/\S+/task:(\d)/\S+'
  message = re.compile(rf'^\[(\d+)B\] \S+ (\S+) from {task} to {task}$')
  sent = {}
  for device in trace.step_stats.dev_stats:
    for node in device.node_stats:
      if found := message.search(node.timeline_label):
        num_bytes, edge, *ends = found.groups()
        way = '{} {} to {} {}'.format(*ends)
        sent[edge, way] = way, int(num_bytes)
  return sent


def run():
  """The program: see above."""
  cli.run(_main)


def _main():
  member = role_flags.from_flags()
  server = server_lib.make_server(member, server_lib.make_server_config())

  def wait_for_ever(pairs, staleness):
    del staleness
    with tf.device(pairs[0][0].device):
      never = tf.FIFOQueue(1, tf.float32, [])
      with tf.control_dependencies([pairs[0][0]]):
        size = never.size()
    with tf.device(member.cpu_device), tf.control_dependencies([size]):
      say = tf.print('has the lock', output_stream=sys.stderr)
    with tf.device(never.queue_ref.device), tf.control_dependencies([say]):
      return never.dequeue().op

  holds_lock = member.task_index == 1
  counter = Counter(member, 4, apply=wait_for_ever if holds_lock else None)
  with tf.Session(
    server.target, config=member.session_config(tf.ConfigProto())
  ) as session:
    if holds_lock:
      session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())
    print('pushing', flush=True)
    new_step, staleness = session.run(counter.push)
  print(f'pushed: step {new_step}, staleness {staleness}', flush=True)


def test_the_lock_is_let_go_when_its_holder_is_killed(
  tasks, make_real_cluster, tmp_path
):
  cluster = make_real_cluster(2, 3)
  for index in range(2):
    cluster.start('ps', index)

  def start(index):
    return tasks.start(
      tmp_path / f'worker_{index}',
      '--job_name=worker',
      f'--task_index={index}',
      f'--ps_hosts={",".join(cluster.hosts["ps"])}',
      f'--worker_hosts={",".join(cluster.hosts["worker"])}',
      module=__name__,
    )

  holder = start(1)
  wait_for_line(holder, 'has the lock')
  others = [start(index) for index in (0, 2)]
  for worker in others:
    wait_for_line(worker, 'pushing')
  with pytest.raises(TimeoutError):
    tasks.wait(*others, timeout_secs=0.3)
  assert not any('pushed' in worker.output for worker in others)
  tasks.signal(holder, signal.SIGKILL)
  assert tasks.wait(holder, *others) == [-9, 0, 0]
  found = {
    re.search(r'^pushed: (.*)', worker.output, re.M)[1] for worker in others
  }
  # The push of the dead worker was not counted.
  assert found == {'step 1, staleness 0', 'step 2, staleness 1'}
