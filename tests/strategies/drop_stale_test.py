"""drop_stale: two workers stepped by hand, and a NumPy oracle."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cluster as cluster_lib
from distmnist import report
from distmnist.strategies import drop_stale
from tests.strategies import stepper as stepper_lib
from tests.strategies.stepper import draw_events


@pytest.fixture
def make(make_stepper):
  """Returns make(max_staleness, num_ps=1, ...) -> a Stepper of two workers."""

  def make(max_staleness, num_ps=1, **settings):
    make_rule = functools.partial(
      drop_stale.DropStale, max_staleness=max_staleness
    )
    return make_stepper(num_ps, 2, make_rule, **settings)

  return make


def read_slot(stepper):
  """Returns the momentum of w, a list of float."""
  worker = stepper.workers[0]
  with worker.graph.as_default():
    (slot,) = (v for v in tf.global_variables() if v.op.name == 'w/Momentum')
  return worker.session.run(slot).tolist()


def test_two_workers_one_after_the_other(make):
  stepper = make(max_staleness=1)
  # Rate 0.5. The gradient is (copy - x); a copy is as old as its last step.
  assert stepper.step(0, [8]) == (1, 0, [4])  # 0 + 0.5 * 8
  assert stepper.step(1, [6]) == (2, 1, [7])  # Copy 0: 4 + 0.5 * 6
  assert stepper.step(1, [9]) == (3, 0, [8])  # Copy 7: 7 + 0.5 * 2
  assert stepper.step(0, [0]) == (3, 2, [8])  # Copy 4: too old.
  assert stepper.read_copy(0) == [8]  # But it was not in vain.
  assert stepper.step(0, [6]) == (4, 0, [7])  # 8 - 0.5 * 2


@pytest.mark.parametrize(
  'max_staleness, staleness',
  [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4)],
)
def test_a_gradient_counts_up_to_max_staleness(make, max_staleness, staleness):
  stepper = make(max_staleness)
  stepper.begin(0, [12])
  for _ in range(staleness):
    stepper.step(1, [0])  # Its gradient is 0: it moves the clock alone.
  if staleness <= max_staleness:
    assert stepper.end(0) == (staleness + 1, staleness, [6])
  else:
    assert stepper.end(0) == (staleness, staleness, [0])


@pytest.mark.slow
def test_what_is_dropped_changes_neither_center_nor_slots_nor_step(make):
  stepper = make(max_staleness=0, optimizer='momentum')
  stepper.begin(0, [100])
  assert stepper.step(1, [8]) == (1, 0, [4])
  assert read_slot(stepper) == [-8]
  assert stepper.end(0) == (1, 1, [4])
  assert read_slot(stepper) == [-8]
  assert stepper.read_copy(0) == [4]
  # v = 0.9 * -8 - 1: the momentum knows nothing of what was dropped.
  step, staleness, (w,) = stepper.step(0, [5])
  assert (step, staleness, w) == (2, 0, pytest.approx(4 + 0.5 * 8.2))


@pytest.mark.slow
def test_who_was_dropped_is_not_stale_the_next_time(make):
  stepper = make(max_staleness=0)
  for index in (0, 1):
    stepper.begin(index, [2])
  assert stepper.end(0) == (1, 0, [1])
  assert stepper.end(1) == (1, 1, [1])
  # A dropped gradient does not make that of the other stale, either.
  assert stepper.step(0, [1]) == (2, 0, [1])
  assert stepper.step(1, [1]) == (2, 1, [1])


@pytest.mark.slow
def test_a_dropped_gradient_was_sent_all_the_same(make):
  stepper = make(max_staleness=0, num_ps=2, size=5)
  stepper.begin(0, [1] * 5)
  stepper.step(1, [0] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)
  stepper.end(0)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)


def compute_drop_stale(w, events, rate, momentum, max_staleness):
  """The rule as its docstring has it, slowly.

  Args:
    w: float array, x~ at step 0.
    events: list of (worker, x or None): compute with x, or push and pull.
    rate, momentum: float.
    max_staleness: int.

  Returns:
    (a list of (c, s, x~, the copies), one a push; how many were dropped by
    each worker, a list of int).
  """
  velocity, c = np.zeros_like(w), 0
  copies, clocks, gradients, found = [w, w], [0, 0], [None, None], []
  num_dropped = [0, 0]
  for i, x in events:
    if x is not None:
      gradients[i] = copies[i] - x
      continue
    s = c - clocks[i]
    if s <= max_staleness:
      velocity = momentum * velocity + gradients[i]
      w = w - rate * velocity
      c += 1
    else:
      num_dropped[i] += 1
    copies[i], clocks[i] = w, c
    found.append((c, s, w, list(copies)))
  return found, num_dropped


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, optimizer, momentum, max_staleness',
  [
    (1, 'sgd', 0, 0),
    (2, 'sgd', 0, 1),
    (1, 'momentum', 0.9, 1),
    (2, 'momentum', 0.9, 0),
  ],
)
def test_random_steps_agree_with_the_oracle(
  make, num_ps, optimizer, momentum, max_staleness
):
  rng = np.random.default_rng(num_ps)
  events = draw_events(rng, num_steps=50, size=5)
  expected, num_dropped = compute_drop_stale(
    np.zeros(5), events, 0.2, momentum, max_staleness
  )
  assert min(num_dropped) >= 3
  expected = iter(expected)
  stepper = make(max_staleness, num_ps, size=5, optimizer=optimizer, rate=0.2)
  stats = [report.WorkerStats(i) for i in range(2)]
  for worker, x in events:
    if x is not None:
      stepper.begin(worker, x)
      continue
    step, staleness, w = stepper.end(worker)
    expected_step, expected_staleness, *expected_values = next(expected)
    assert (step, staleness) == (expected_step, expected_staleness)
    copies = [stepper.read_copy(i) for i in range(2)]
    for found, value in zip([w, copies], expected_values, strict=True):
      np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    stats[worker].staleness[staleness] += 1
  # The report makes its count of the dropped from the staleness of all pushes.
  rule = stepper.workers[0].rule
  rows = report.compose({}, {}, stats, rule.max_staleness)['workers']
  assert [row['gradients_dropped'] for row in rows] == num_dropped
  num_pushes = sum(stats[0].staleness.values()) + sum(
    stats[1].staleness.values()
  )
  assert num_pushes >= 50
  assert step == num_pushes - sum(num_dropped)


@pytest.mark.slow
def test_the_center_is_on_the_ps_and_the_copy_on_the_worker(make):
  stepper = make(3, num_ps=2, size=5, optimizer='momentum')
  for worker in stepper.workers:
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
    here = f'/job:worker/task:{worker.index}/device:CPU:0'
    assert local == {'local_copy/w': here, 'drop_stale/pulled_step': here}


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make, make_cluster):
  stepper = make(max_staleness=0, num_ps=2, size=2)
  stepper.step(0, [8, 2])
  stepper.workers[1].session.close()
  stepper.workers[1] = stepper_lib.Worker(
    make_cluster(2, 2),
    1,
    lambda member: drop_stale.DropStale(member, 0),
    2,
    'sgd',
    0.5,
  )
  assert stepper.read_copy(1) == stepper.read_center() == [4, 1]
  assert stepper.step(1, [6, 1]) == (2, 0, [5, 1])  # Not stale.


@pytest.mark.parametrize('words, expected', [([], 3), (['0'], 0), (['7'], 7)])
def test_the_flag_says_what_is_too_stale(set_flags, words, expected):
  set_flags(*(f'--max_staleness={word}' for word in words))
  assert drop_stale.make(cluster_lib.Cluster()).max_staleness == expected


def test_staleness_is_not_negative(set_flags):
  message = '--max_staleness=-1'
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    set_flags('--max_staleness=-1')
