"""A task of each role dies: what stands still, and which images are read.

A real cluster of each rule loses a ps, a worker and the chief by SIGKILL; the
launcher starts them again. Without the worker some rules stand still until it
is back, as their docstrings say. What was read is taken from the history of all
lives, and turned into images by the data order: each image once an epoch.
"""

import collections
import signal

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.data import data_order
from distmnist.training import schedule
from tests.support.runner import SMALL, import_benchmark

training = import_benchmark('lib.fault_training')
fault_reads = import_benchmark('lib.fault_reads')
fault_run = import_benchmark('lib.fault_run')

pytestmark = pytest.mark.usefixtures('forked_launches')

NUM_IMAGES, BATCH, SEED = 2500, 20, 5  # SMALL leaves so many to train on.
# Those that stand still when a worker dies, until it is back.
WAITING = {
  'bmuf': 60,
  'easgd in lock-step': 100,
  'ring_allreduce': 120,
  'sagn': 80,
  'ssp': 400,
  'sync_sgd': 150,
  'sync_sgd by shards': 150,
}
# The last task is killed after a third of them. Where all wait for all, few are
# made meanwhile.
NUM_STEPS = dict.fromkeys(registry.names(STRATEGIES), 1000) | {
  **WAITING,
  'agn': 600,
  'bmuf with delayed Nesterov': 400,
  'downpour': 600,
  'dynsgd': 600,
  'easgd': 300,
  'sync_sgd with a backup': 250,
  'sync_sgd by shards with a backup': 250,
}


def kill(run, task):
  """Kills a task; returns once the launcher has started it again."""
  num_starts = len(run.logs[task].start_times)
  assert run.signal(task, signal.SIGKILL)
  assert run.wait_until(lambda: len(run.logs[task].start_times) > num_starts)


def kill_and_look(run, task, is_waiting):
  """Kills a worker; looks at the others before it is started again."""
  num_starts = len(run.logs[task].start_times)
  run.group.signal(run._launch, signal.SIGSTOP)  # It would start it at once.
  try:
    assert run.signal(task, signal.SIGKILL)
    assert run.wait_until(lambda: task not in run.find_pids())
    # What is on its way is still counted, and a few steps by a bound.
    mark = run.step + 20
    goes_on = run.wait_until(
      lambda: run.step > mark, limit_secs=1.5 if is_waiting else 60
    )
    assert goes_on != is_waiting
  finally:
    run.group.signal(run._launch, signal.SIGCONT)
  assert run.wait_until(lambda: len(run.logs[task].start_times) > num_starts)


def kill_each_role(run, is_waiting):
  """Kills a ps; when all go on, a worker; as that one starts, the chief."""
  if run.shape[0]:
    assert run.wait_until(lambda: all(log.step for log in run.workers))
    kill(run, 'ps 0')
    assert run.wait_until(lambda: all(log.recoveries for log in run.workers))
  since = run.step
  assert run.wait_until(lambda: run.step > since + 0.1 * run.last_step)
  kill_and_look(run, 'worker 2', is_waiting)
  kill(run, 'worker 0')


def count_images(events, num_epochs, may_leave):
  """Returns {(epoch, image): [least, most]}, the reads of whole epochs.

  Args:
    events: list of dicts, of the history.
    num_epochs: int.
    may_leave: bool, whether what a worker still holds at the end, a lease at
      most, may stay unread.
  """
  order = data_order.Order(NUM_IMAGES, SEED)
  reads = collections.defaultdict(lambda: np.zeros(2, np.int64))
  counted, left = fault_reads.count(events)
  if may_leave:
    assert len(left) <= 3 * 64
    for key in left:  # Also what was read, and whose push was discarded.
      least, most = counted.get(key, (0, 0))
      counted[key] = least, max(most, 1)
  for (_, ticket), counts in counted.items():
    places = np.arange(ticket * BATCH, (ticket + 1) * BATCH)
    for place, image in zip(places, order.find_images(places), strict=True):
      reads[place // NUM_IMAGES, image] += counts
  return {key: x.tolist() for key, x in reads.items() if key[0] < num_epochs}


def plan_epochs(set_flags, flags, shape):
  """Returns the number of whole epochs of a training."""
  set_flags(*flags)
  ps, workers = (
    tuple(f'{job}{i}:2222' for i in range(number))
    for job, number in zip(('ps', 'worker'), shape, strict=True)
  )
  spec = cluster.make_cluster(ps, workers, 'worker', 0)
  [name] = [f.partition('=')[2] for f in flags if f.startswith('--strategy=')]
  rule = registry.load(STRATEGIES, name).make(spec)
  plan = schedule.make_plan(spec, rule, NUM_IMAGES)
  # What a restore brings back may be a step or two off its name.
  return (plan.last_step - 4) * plan.images_per_update // NUM_IMAGES


# The ring after kills has the bits of a run without: ring_losses_test.py.
@pytest.mark.daily(but=['async_sgd'])
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize('rule', NUM_STEPS)
def test_each_image_is_read_once_an_epoch(set_flags, tmp_path, rule):
  shape = min(1, training.count_tasks(rule)[0]), 3
  flags = [
    *(*training.RULES[rule], f'--train_steps={NUM_STEPS[rule]}'),
    *(*SMALL, f'--batch_size={BATCH}', f'--seed={SEED}', '--save_steps=100'),
    *('--validation_steps=0', '--early_stopping_patience=0'),
  ]
  run = fault_run.Run(tmp_path, flags, *shape)
  try:
    kill_each_role(run, rule in WAITING)
    problem, report = run.finish(120)
  finally:
    run.close()
  assert not problem
  assert training.find_violations(run, report, rule) == []
  events = run.read_history()
  num_epochs = plan_epochs(set_flags, flags, shape)
  assert num_epochs >= 2
  reads = count_images(events, num_epochs, rule in training.LEAVING)
  assert len(reads) == num_epochs * NUM_IMAGES
  wrong = {k: v for k, v in reads.items() if not v[0] <= 1 <= v[1]}
  assert not wrong, f'{len(wrong)} images, as {[*wrong.items()][:5]}'
  surely_once = sum(counts == [1, 1] for counts in reads.values())
  assert surely_once > 0.8 * len(reads)
