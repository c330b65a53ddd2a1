"""plateau: all workers of a lock-step cut the rate at the same step."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.steps import fused_steps
from distmnist.logdir import best
from distmnist.nn import optimizers, plateau
from distmnist.training.hooks import stop_hook, validation
from distmnist.transport import sharding, strategy
from tests.support import in_process

STEPS, SIZE, PERIOD = 20, 5, 2
# What the validation after a global step finds. With a patience of 2 there are
# two that are not better by 10, four by 14, and only one since 16.
ACCURACY = dict(
  zip(range(2, 22, 2), [5, 4, 6, 6, 3, 2, 2, 9, 1, 9], strict=True)
)
CUTS = 10, 14
_RNG = np.random.default_rng(5)
START = _RNG.normal(size=SIZE).astype(np.float32)
X = _RNG.normal(size=(STEPS, 3, SIZE)).astype(np.float32)
FLAGS = (
  *('--learning_rate=0.2', '--lr_schedule=plateau', '--lr_decay_rate=0.5'),
  *('--lr_patience=2', '--lr_warmup_steps=4', '--block_momentum=0'),
  f'--communication_period={PERIOD}',
)


def compute(rule, num_workers):
  """Returns the center after each step, in float64, from the rule's equation.

  An update at step t has the rate as it was cut before t.
  """
  w, path = START.astype(float), []
  for t in range(STEPS):
    rate = 0.2 * min(1, t / 4) * 0.5 ** sum(t > cut for cut in CUTS)
    copies = [w] * num_workers
    for _ in range(PERIOD if rule == 'bmuf' else 1):
      copies = [c - rate * (c - X[t, i]) for i, c in enumerate(copies)]
    w = np.mean(copies, 0)
    path.append(w)
  return path


class Judge(strategy.CenterHook):
  """A chief whose validations find what ACCURACY says; keeps the path."""

  def __init__(self, steps, w):
    self._steps, self._w, self.path, self.judge = steps, w, {}, None

  def begin_judging(self):
    def evaluate(session):
      step = int(session.run(tf.train.get_global_step(self._w[0].graph)))
      return {'global_step': step}, {'accuracy': ACCURACY[step]}

    self.judge = validation.Validation(
      *(self._steps, evaluate, 2, 0, best.Best(), None, lambda context: None),
      plateau=plateau.find(),
    )
    self.judge.begin()

  def after_create_session(self, session, coord):
    if self.judge:
      self.judge.after_create_session(session, coord)

  def after_run(self, run_context, run_values):
    # Nobody makes the next update before this worker's next step.
    read = np.concatenate(run_context.session.run(self._w))
    self.path[int(self._steps.last['global_step'])] = read
    if self.judge:
      self.judge.after_run(run_context, run_values)


def train(cluster, name, steps_per_run):
  """Returns {step: the weights after it} of each worker."""

  def start(shape, dtype=None, partition_info=None):
    begin = partition_info.var_offset[0] if partition_info else 0
    return tf.constant(START[begin : begin + shape[0]], dtype)

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      rule = registry.load(STRATEGIES, name).make(member)
      with sharding.sharded(member.num_ps), rule.scope():
        w = tf.get_variable('w', [SIZE], initializer=start)
      shards = tf.trainable_variables()
      x = tf.gather(tf.constant(X[:, index]), global_step.read_value())
      loss = tf.reduce_sum((w - x) ** 2) / 2
      make_optimizer, _ = optimizers.from_flags(global_step)
      update = rule.minimize(loss, make_optimizer, global_step)
      rule.hold_back([update.train_op])
    steps = fused_steps.Steps(
      {'global_step': update.train_op},
      steps_per_run,
      in_process.Countdown(STEPS, cluster.num_workers, rule.push_period),
      periodic_exchange.get_all(),
    )
    judge, stop = Judge(steps, shards), in_process.NoStop()
    if index == 0:
      judge.begin_judging()
    hooks = [
      *(steps, *rule.hooks(stop)),
      stop_hook.StopHook(steps, global_step, STEPS, stop, lambda: False),
      judge,
    ]
    with cluster.make_session(index, hooks) as session:
      while not session.should_stop():
        session.run([])
    return judge.path

  return cluster.run_workers(work)


@pytest.mark.daily(but=['sync_sgd-2-2-1-shard'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'name, num_ps, num_workers, steps_per_run, barrier',
  [
    ('async_sgd', 1, 1, 1, 'step'),
    ('sync_sgd', 1, 1, 1, 'step'),
    ('sync_sgd', 1, 2, 1, 'step'),
    ('sync_sgd', 2, 3, 1, 'step'),
    ('sync_sgd', 2, 2, 2, 'step'),
    ('sync_sgd', 2, 2, 1, 'shard'),
    ('ring_allreduce', 0, 1, 1, 'step'),
    ('ring_allreduce', 0, 2, 1, 'step'),
    ('ring_allreduce', 0, 2, 2, 'step'),
    ('ring_allreduce', 0, 3, 1, 'step'),
    ('bmuf', 1, 2, 1, 'step'),
    ('bmuf', 2, 3, 4, 'step'),
  ],
)
def test_the_rate_is_cut_at_the_same_step_on_all(
  make_cluster, set_flags, name, num_ps, num_workers, steps_per_run, barrier
):
  set_flags(*FLAGS, f'--sync_barrier={barrier}')
  cluster = make_cluster(num_ps, num_workers)
  cluster.reset()
  expected = compute(name, num_workers)
  for path in train(cluster, name, steps_per_run):
    path.pop(0, None)  # Local steps before the first exchange.
    assert STEPS in path
    for step, w in path.items():
      np.testing.assert_allclose(w, expected[step - 1], rtol=1e-6, atol=1e-6)


def make_plateau(session):
  """Returns (Plateau of the default graph, its global step)."""
  global_step = tf.train.get_or_create_global_step()
  made = plateau.Plateau(global_step, 0.5)
  session.run(tf.global_variables_initializer())
  return made, global_step


@pytest.mark.slow
def test_a_cut_holds_from_the_step_after_it(tf_session, set_flags):
  set_flags()
  made, global_step = make_plateau(tf_session)
  cuts, cut = made.build_cuts(), made.build_cut()
  found = []
  for step in range(6):
    tf_session.run(global_step.assign(step))
    found.append(float(tf_session.run(cuts)))
    if step in (2, 3):
      tf_session.run(cut)
      found.append(float(tf_session.run(cuts)))
  assert found == [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
  'before, is_told, after',
  [
    ([1, 4], False, [1, 4]),  # Nothing is new.
    ([1, 4], True, [2, 7]),  # Another worker has cut the rate.
    ([2, 7], True, [2, 7]),  # This one has, and all have heard of it.
    ([2, 7], False, [2, 8]),  # It was lost on its way: once again.
  ],
)
def test_all_have_the_cut_that_they_are_told(
  tf_session, set_flags, before, is_told, after
):
  set_flags()
  made, global_step = make_plateau(tf_session)
  is_untold = made.build_is_untold()
  follow = made.build_follow(is_untold, tf.constant(is_told))
  tf_session.run([global_step.assign(7), made.variable.assign(before)])
  tf_session.run(follow)
  assert tf_session.run(made.variable).tolist() == after
