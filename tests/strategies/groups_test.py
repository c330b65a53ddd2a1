"""Rules whose variables are in groups, in lock-step with an oracle in NumPy."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import groups
from distmnist.training import flag_checks, step
from tests.support import grouped, in_process

SECS = 60
ALPHA, DC_LAMBDA = 0.2, 0.5


class Stop(in_process.NoStop):
  signal = None


def train(cluster, given, has_table, in_turns):
  """Returns {whole name: array} of worker 0's center after all steps.

  Args:
    cluster: in_process.InProcessCluster.
    given: dict, a problem's `groups`.
    has_table: bool, see grouped.build.
    in_turns: bool, whether a worker steps once the one before it has.
  """
  n, done = cluster.num_workers, threading.Condition()
  ready, counts = threading.Barrier(n), [0]
  batches = grouped.draw(n)

  def work(index):
    member = cluster.worker(index)
    _, rule = flag_checks.make_strategy(member)
    x, y = (
      tf.placeholder(tf.float32, [grouped.BATCH, size])
      for size in (grouped.IN, grouped.OUT)
    )
    ids = tf.placeholder(tf.int64, [grouped.BATCH])

    def build_loss(state):
      del state
      return grouped.build(x, y, ids if has_table else None), {}

    built = step.build_step_of(
      member, rule, build_loss, groups=groups.parse(given, 'file.py')
    )
    shards = tf.trainable_variables()
    names = [groups.find_name(v) for v in shards]
    hooks = rule.hooks(Stop())
    with cluster.make_session(index, hooks) as session:
      ready.wait(SECS)
      for number in range(grouped.STEPS):
        feed = {
          placeholder: array[number, index]
          for placeholder, array in zip((x, y, ids), batches, strict=True)
        }
        turn = number * n + index
        with done:
          while in_turns and counts[0] != turn:
            assert done.wait(SECS)
        session.run(built.update.train_op, feed)
        with done:
          counts[0] += 1
          done.notify_all()
      ready.wait(SECS)
      # Past the hooks: to those of a ring a run is a step.
      values = session.run_step_fn(
        lambda step_context: step_context.session.run(shards)
      )
      found = {}
      for name, value in zip(names, values, strict=True):
        found.setdefault(name, []).append(value)
      ready.wait(SECS)
    return {name: np.concatenate(parts) for name, parts in found.items()}

  return cluster.run_workers(work)[0]


def compute_mean_steps(n, has_table):
  """The oracle of sync_sgd and ring_allreduce: x <- Opt(x, mean of g^i)."""
  values, move = grouped.begin(has_table), grouped.Moves()
  for batch in zip(*grouped.draw(n), strict=True):
    each = [
      grouped.compute_gradients(values, *(part[i] for part in batch))
      for i in range(n)
    ]
    values = move(
      values, {name: sum(g[name] for g in each) / n for name in values}
    )
  return values


def compute_dc_asgd(n, has_table):
  """x <- Opt(x, g + lambda g g (x - x_bak)); then the worker pulls x."""
  values, move = grouped.begin(has_table), grouped.Moves()
  copies = [values] * n
  for batch in zip(*grouped.draw(n), strict=True):
    for i in range(n):
      copy = dict(copies[i])
      if has_table:  # Rows are pulled as a step begins.
        copy[grouped.TABLE] = values[grouped.TABLE]
      found = grouped.compute_gradients(copy, *(part[i] for part in batch))
      values = move(
        values,
        {
          name: g + DC_LAMBDA * g * g * (values[name] - copy[name])
          for name, g in found.items()
        },
      )
      copies[i] = values
  return values


def compute_easgd(n, has_table):
  """d^i = alpha (x^i - x); x^i <- Opt(x^i - d^i, g^i); x <- x + sum d^i."""
  center = grouped.begin(has_table)
  copies = [center] * n
  moves = [grouped.Moves(is_local=True) for _ in range(n)]
  for batch in zip(*grouped.draw(n), strict=True):
    after = dict(center)
    for i in range(n):
      found = grouped.compute_gradients(copies[i], *(p[i] for p in batch))
      apart = {
        name: ALPHA * (x - center[name]) for name, x in copies[i].items()
      }
      after = {name: x + apart[name] for name, x in after.items()}
      moved = {name: x - apart[name] for name, x in copies[i].items()}
      copies[i] = moves[i](moved, found)
    center = after
  return center


RULES = {
  'sync_sgd': (compute_mean_steps, True),
  'sync_sgd --sync_barrier=shard': (compute_mean_steps, False),
  f'dc_asgd --dc_lambda={DC_LAMBDA}': (compute_dc_asgd, True),
  f'easgd --easgd_sync --moving_rate={ALPHA}': (compute_easgd, False),
}


@pytest.mark.daily(but=['sync_sgd-2-2'])
@pytest.mark.slow
@pytest.mark.parametrize('num_ps, num_workers', [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize('words', RULES)
def test_each_group_is_moved_as_it_says(
  make_cluster, set_flags, words, num_ps, num_workers
):
  oracle, has_table = RULES[words]
  rule, *others = words.split()
  set_flags(
    *(f'--strategy={rule}', *others, *grouped.FLAGS),
    *(grouped.TABLE_FLAGS if has_table else ()),
  )
  given = grouped.LOCAL_GROUPS if rule == 'easgd' else grouped.GROUPS
  found = train(
    make_cluster(num_ps, num_workers), given, has_table, rule == 'dc_asgd'
  )
  check(found, oracle(num_workers, has_table))


@pytest.mark.daily(but=['2'])
@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [1, 2, 3])
def test_so_it_is_without_a_ps(make_cluster, set_flags, num_workers):
  set_flags('--strategy=ring_allreduce', *grouped.FLAGS)
  cluster = make_cluster(0, num_workers)
  cluster.reset()
  found = train(cluster, grouped.GROUPS, has_table=False, in_turns=False)
  check(found, compute_mean_steps(num_workers, has_table=False))


def check(found, expected):
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(
      found[name], value, rtol=0, atol=2e-5, err_msg=name
    )
