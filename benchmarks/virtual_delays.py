"""Update rules with slow and fast workers, on a virtual clock.

  python benchmarks/virtual_delays.py [--workers=8,32] [--times=fixed|drawn]
      [--rules NAME ...] [--data_dir=DIR] [--target=0.5] [--max_units=600]

A step of worker i takes i units, i = 1..n (--times=drawn: i times a lognormal
number of mean 1, sigma 1, anew in each step). Steps begin and end in the order
of this clock: nothing sleeps, and messages take no time. Each rule is the NumPy
oracle that its own test compares with its graph (tests/strategies). The problem
is softmax regression on MNIST of 7 x 7 pixels, from zeros, by plain SGD with
batches of 64. Measured are the units until the loss of 1,000 test images, read
each 3 % of the time, is down to --target, by the mean over three seeds.

Each rule has 40 settings, of which the best is in the table: 8 rates times 5
bounds of its own, or 40 rates, from 0.02 to 5.12. `sync_sgd` takes R of n
gradients an update, the others are those of backup workers. With the same
bound `drop_stale` makes the updates of `ringmaster`: with the best one they
share a row, and each has one with its default. `with stops` is algorithm 5 of
the Ringmaster paper, where a worker leaves its gradient midway once R updates
have come since its pull; `ringmaster` is algorithm 4.
"""

import functools
import heapq
import itertools
import os
import sys
from typing import NamedTuple

import numpy as np
import options
import tables

from distmnist.datasets import mnist
from tests.strategies import (
  async_sgd_test,
  ringmaster_test,
  staleness_aware_test,
  sync_sgd_test,
)
from tests.support import oracles

NUM_CLASSES = 10
BATCH_SIZE = 64
NUM_JUDGED = 1000
SEEDS = 0, 1, 2
NUM_RATES, NUM_BOUNDS = 8, 5
RATES = 0.02, 5.12  # The lowest and the highest.


class Images(NamedTuple):
  """float32 x [m, d], the last column of ones, and y [m, classes], one-hot."""

  x: np.ndarray
  y: np.ndarray

  def take(self, rows):
    return Images(self.x[rows], self.y[rows])


class Softmax(oracles.Oracle):
  """Softmax regressions side by side, in place of an oracle's own loss.

  One for each rate: what a rule decides depends on no value, so all of them see
  the same batches in the same order.
  """

  def __init__(self, num_inputs, rates, **how):
    """
    Args:
      num_inputs: int, d.
      rates: list of float.
      **how: see oracles.Oracle.
    """
    rate = np.repeat(np.array(rates, np.float32), NUM_CLASSES)
    super().__init__(rate=rate, **how)
    self.center = np.zeros([num_inputs, len(rate)], np.float32)
    self.copies = [self.center] * self.num_workers

  def begin(self, i, batch):
    x, y = batch
    off = compute_probabilities(self.copies[i], x) - y[:, None]
    self.gradients[i] = x.T @ off.reshape([len(x), -1]) / len(x)
    self.begun[i] = self.step


class Backup(sync_sgd_test.Oracle):
  """sync_sgd by the first R gradients of a center; later ones are dropped."""

  def __init__(self, num_needed, **how):
    super().__init__(**how)
    self._num_needed = num_needed

  def end(self, i):
    if self.pulled_step[i] < self.step:
      return {i: (self.step, self.step - self.pulled_step[i])}
    self._given[i] = self.gradients[i]
    if len(self._given) < self._num_needed:
      return {}
    given, self._given = self._given, {}
    mean = sum(given.values()) / len(given)
    self.center = self.optimizer(self.center, mean, self.step)
    self.step += 1
    return dict.fromkeys(given, (self.step, 0))


class Rule(NamedTuple):
  """A row of the table.

  Attributes:
    oracle: class of oracles.Oracle.
    setting: str, the argument that `find_bounds` is for; '' for none.
    find_bounds: callable(n) -> list of int.
    stops: bool, whether a worker begins anew once R updates have come.
  """

  oracle: type
  setting: str = ''
  find_bounds: object = lambda n: [None]
  stops: bool = False


def find_limits(n):
  """Returns five of R - 1: drop_stale's default, and some around n."""
  return [n - 1, 2 * n - 1, 4 * n - 1, 3, n // 4 - 1]


def find_replicas(n):
  """Returns five of --replicas_to_aggregate."""
  return [n // 2, n // 4, n // 8, 3 * n // 4, n]


_RING = ringmaster_test.Oracle, 'max_staleness', find_limits
RULES = {
  'async_sgd': Rule(async_sgd_test.Oracle),
  'sync_sgd': Rule(Backup, 'num_needed', find_replicas),
  'staleness_aware': Rule(staleness_aware_test.Oracle),
  'ringmaster, drop_stale': Rule(*_RING),
  'ringmaster with stops': Rule(*_RING, stops=True),
}


def compute_probabilities(w, x):
  """Returns [len(x), models, classes] of weights [d, models * classes]."""
  logits = (x @ w).reshape([len(x), -1, NUM_CLASSES])
  e = np.exp(logits - logits.max(2, keepdims=True))
  return e / e.sum(2, keepdims=True)


def compute_losses(w, images):
  """Returns the mean loss of each model, [models]."""
  right = (compute_probabilities(w, images.x) * images.y[:, None]).sum(2)
  return -np.log(right + 1e-30).mean(0)


def draw_fixed(rng, i):
  del rng
  return i + 1


def draw_random(rng, i):
  return (i + 1) * rng.lognormal(-0.5, 1)


TIMES = {'fixed': draw_fixed, 'drawn': draw_random}


def play(oracle, make_batch, draw, stops_at=None):
  """Lets all workers make steps, for ever.

  Args:
    oracle: oracles.Oracle.
    make_batch: callable -> what `oracle.begin` takes.
    draw: callable(worker) -> float, the units that its next step takes.
    stops_at: int or None, the updates since its pull at which a worker leaves
      its gradient, pulls and begins anew.

  Yields:
    The time, a float, after each end of a step.
  """
  events, numbers, current = [], itertools.count(), {}

  def begin(i, now):
    oracle.begin(i, make_batch())
    current[i] = next(numbers)
    heapq.heappush(events, (now + draw(i), current[i], i))

  for i in range(oracle.num_workers):
    begin(i, 0)
  while True:
    now, number, i = heapq.heappop(events)
    if current.get(i) != number:
      continue  # It has begun anew meanwhile.
    del current[i]
    for each in oracle.end(i):
      begin(each, now)
    for each in sorted(current) if stops_at else ():
      if oracle.step - oracle.pulled_step[each] >= stops_at:
        oracle.pull(each)
        begin(each, now)
    yield now


def find_times(rule, bound, rates, num_workers, seed, data, args, limit):
  """Returns the units to the target with each rate; infinity from `limit` on.

  Args:
    rule: Rule.
    bound: int or None, its setting.
    rates: list of float.
    num_workers, seed: int.
    data: (Images to train on, Images to judge by).
    args: of the command line.
    limit: float, units.
  """
  train, test = data
  rng, rng_of_times = (np.random.default_rng([seed, i]) for i in range(2))
  settings = {rule.setting: bound} if rule.setting else {}
  kind = type('Learner', (rule.oracle, Softmax), {})
  oracle = kind(
    num_inputs=train.x.shape[1],
    rates=rates,
    num_workers=num_workers,
    **settings,
  )
  found, due = np.full(len(rates), np.inf), 10
  for now in play(
    oracle,
    lambda: train.take(rng.integers(len(train.x), size=BATCH_SIZE)),
    functools.partial(TIMES[args.times], rng_of_times),
    bound + 1 if rule.stops else None,
  ):
    if now >= limit:
      return found
    if now >= due:
      due = now * 1.03
      losses = compute_losses(oracle.center, test)
      found[(losses <= args.target) & np.isinf(found)] = now
      if np.isfinite(found).all():
        return found


def find_best(rule, num_workers, data, args):
  """Returns {bound: (rate, [units of a seed], limit)} with its best rate.

  A limit of units ends a run: --max_units, or twice the best mean so far.
  """
  num_rates = NUM_RATES if rule.setting else NUM_RATES * NUM_BOUNDS
  rates = np.geomspace(*RATES, num_rates).tolist()
  best, limit = {}, args.max_units
  for bound in rule.find_bounds(num_workers):
    each = [
      find_times(rule, bound, rates, num_workers, seed, data, args, limit)
      for seed in SEEDS
    ]
    means = np.mean(each, 0)
    at = int(means.argmin())
    best[bound] = rates[at], [units[at] for units in each], limit
    limit = min(limit, 2 * means[at])
  return best


def load(data_dir):
  """Returns (the training images, those to judge by), of 7 x 7 pixels."""

  def shrink(split, count=None):
    images, labels = mnist.load(data_dir, split)
    x = images[:count].reshape([-1, 7, 4, 7, 4]).mean((2, 4), np.float32) / 255
    x = (x.reshape([len(x), -1]) - 0.13) / 0.31  # Their mean and deviation.
    x = np.concatenate([x, np.ones([len(x), 1], np.float32)], 1)
    return Images(x, np.eye(NUM_CLASSES, dtype=np.float32)[labels[:count]])

  return shrink('train'), shrink('test', NUM_JUDGED)


def make_rows(name, num_workers, data, args):
  """Measures a rule; returns rows of the table, lists of str."""
  found = find_best(RULES[name], num_workers, data, args)
  best = min(found, key=lambda bound: np.mean(found[bound][1]))
  rows = {name: best}
  if name == 'ringmaster, drop_stale':
    rows |= {'ringmaster, default': 2 * num_workers - 1}
    rows |= {'drop_stale, default': 3}
  return [_format_row(row, bound, *found[bound]) for row, bound in rows.items()]


def _format_row(name, bound, rate, units, limit):
  words = [name, '-' if bound is None else str(bound)]
  if not np.isfinite(units).all():
    return [*words, '-', f'over {limit:.0f}', '-']
  mean = f'{np.mean(units):.0f}'
  return [*words, f'{rate:.2g}', mean, tables.format_range(units, '.0f')]


def parse(words):
  parser = options.make_parser(__doc__)
  parser.add_argument('--workers', default='8,32')
  parser.add_argument('--rules', nargs='*', choices=RULES, default=[*RULES])
  parser.add_argument('--times', choices=TIMES, default='fixed')
  parser.add_argument(
    '--data_dir', default=os.environ.get('DISTMNIST_DATA_DIR')
  )
  parser.add_argument('--target', type=float, default=0.5)
  parser.add_argument('--max_units', type=options.count, default=600)
  return parser.parse_args(words)


def run(words):
  args = parse(words)
  data = load(args.data_dir)
  header = ['rule', 'bound', 'rate', 'units', 'range']
  for n in map(int, args.workers.split(',')):
    rows = []
    for name in args.rules:
      found = make_rows(name, n, data, args)
      print(*found, sep='\n', file=sys.stderr, flush=True)
      rows += found
    print(f'\nn = {n}, {args.times} times, a loss of {args.target}:\n')
    tables.print_table(header, rows)


if __name__ == '__main__':
  run(sys.argv[1:])
