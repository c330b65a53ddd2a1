"""dc_asgd: two workers stepped by hand, and a NumPy oracle."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.strategies import dc_asgd
from tests.strategies import async_sgd_test
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(dc_lambda, decay=None, ...) -> a Stepper of two workers."""

  def make(dc_lambda, decay=None, num_ps=1, **settings):
    make_rule = functools.partial(
      dc_asgd.DcAsgd, dc_lambda=dc_lambda, decay=decay
    )
    return make_stepper(num_ps, 2, make_rule, **settings)

  return make


def find_variables(worker, name):
  """Returns the worker's variables with `name` in theirs, in order."""
  with worker.graph.as_default():
    variables = tf.global_variables() + tf.local_variables()
  return [v for v in variables if name in v.op.name]


def read(worker, name):
  """Returns their values, joined to one list of float."""
  parts = worker.session.run(find_variables(worker, name))
  return np.concatenate(parts).tolist()


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make(dc_lambda=0.5)
  # Rate 0.5; g = x_bak - x, and the step is along g + 0.5 g^2 (w - x_bak).
  assert stepper.step(0, [8]) == (1, 0, [4])  # w is x_bak: g alone.
  assert stepper.step(1, [2]) == (2, 1, [1])  # g = -2: -2 + 0.5 * 4 * 4 = 6
  assert stepper.step(1, [3]) == (3, 0, [2])  # w is x_bak again.
  assert stepper.step(0, [2]) == (4, 2, [3])  # g = 2: 2 + 0.5 * 4 * -2 = -2
  assert stepper.read_copy(0) == [3]
  assert stepper.read_copy(1) == [2]


# Worker 1 moves the center to 2, 3, 3.5 while g = 0 - 2 is on its way:
# g + 0.25 g^2 w = -2 + w, and half of it is taken off w.
@pytest.mark.slow
@pytest.mark.parametrize('staleness, w', [(0, 1), (3, 2.75)])
def test_a_gradient_is_moved_by_as_much_as_the_center_was(make, staleness, w):
  stepper = make(dc_lambda=0.25)
  stepper.begin(0, [2])
  for _ in range(staleness):
    stepper.step(1, [4])  # Alone, it is never compensated.
  assert stepper.end(0) == (staleness + 1, staleness, [w])


@pytest.mark.slow
def test_the_adaptive_lambda_is_divided_by_the_root_mean_square(make):
  stepper = make(dc_lambda=6**0.5, decay=0.5)
  stepper.begin(0, [2])
  assert stepper.step(1, [4]) == (1, 0, [2])  # MS = 0.5 * 16 = 8
  step, staleness, (w,) = stepper.end(0)
  # MS = 0.5 * 8 + 0.5 * 4 = 6, of both workers' gradients, so that lambda = 1:
  # 2 - 0.5 (-2 + 1 * 4 * 2)
  assert (step, staleness, w) == (2, 1, pytest.approx(-1, abs=1e-5))
  for worker in stepper.workers:
    assert read(worker, 'mean_square') == [6]


@pytest.mark.slow
def test_a_first_gradient_of_nothing_does_not_divide_by_zero(make):
  stepper = make(dc_lambda=2, decay=0.95)
  assert stepper.step(0, [0]) == (1, 0, [0])
  stepper.begin(0, [0])
  assert stepper.step(1, [0]) == (2, 1, [0])
  assert stepper.end(0) == (3, 1, [0])


@pytest.mark.slow
def test_the_velocity_takes_the_compensated_gradient(make):
  stepper = make(dc_lambda=0.5, optimizer='momentum')
  stepper.begin(0, [2])
  assert stepper.step(1, [4]) == (1, 0, [2])  # v = -4
  # g = -2, compensated to -2 + 0.5 * 4 * 2 = 2; v = 0.9 * -4 + 2 = -1.6
  step, staleness, (w,) = stepper.end(0)
  assert (step, staleness, w) == (2, 1, pytest.approx(2.8))


class Oracle(oracles.Oracle):
  """A gradient is moved to the current center: g + lambda g^2 (x~ - x_bak)."""

  def __init__(self, dc_lambda, decay=None, **how):
    super().__init__(**how)
    self._lambda, self._decay, self._mean_square = dc_lambda, decay, 0

  def end(self, i):
    g, factor = self.wire(self.gradients[i]), self._lambda
    if self._decay is not None:
      m = self._decay
      self._mean_square = m * self._mean_square + (1 - m) * g * g
      factor = self._lambda / np.sqrt(self._mean_square + 1e-7)
    g = g + factor * g * g * (self.center - self.pulled[i])
    self.center = self.optimizer(self.center, g, self.begun[i])
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  dc_asgd.DcAsgd,
  Oracle,
  flags=('--dc_lambda=0.4',),
  settings={'dc_lambda': 0.4},
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'dc_asgd/pulled_step',
        'dc_asgd/{w}/backup_of_worker_{i}',
      ],
      {'dc_lambda': 0.04},
    ),
    rule.Placement(
      ['{w}', 'dc_asgd/{w}/mean_square'],
      [
        'local_copy/w',
        'dc_asgd/pulled_step',
        'dc_asgd/{w}/backup_of_worker_{i}',
      ],
      {'dc_lambda': 2, 'decay': 0.95},
      'sgd',
    ),
  ],
  # The backups are made where they stay: they cost no traffic.
  traffic=[rule.Traffic([(20, 20)], {'dc_lambda': 0.04, 'decay': 0.95})],
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, optimizer, dc_lambda, decay',
  [
    (1, 'sgd', 0.3, None),
    (2, 'momentum', 0.7, 0.95),
  ],
)
def test_random_steps_agree_with_the_oracle_and_the_backups(
  make_stepper, num_ps, optimizer, dc_lambda, decay
):
  settings, seen = {'dc_lambda': dc_lambda, 'decay': decay}, []
  stepper, oracle = rule.make_pair(
    make_stepper,
    RULE,
    rule.RandomSteps(num_ps, optimizer, settings, rate=0.05),
  )
  rng = np.random.default_rng(num_ps)
  for _, _, staleness in oracles.play(stepper, oracle, rng, 80):
    # x_bak is, to the last bit, what the worker pulled.
    assert stepper.read_copies() == [
      read(stepper.workers[i], f'backup_of_worker_{i}') for i in range(2)
    ]
    seen.append(staleness)
  assert len(seen) >= 35
  assert set(seen) >= {0, 1, 2, 3}


@pytest.mark.slow
def test_without_lambda_it_is_async_sgd(make):
  rng = np.random.default_rng(0)
  oracle = async_sgd_test.Oracle(rate=0.2, momentum=0.9)
  stepper = make(0, num_ps=2, size=5, optimizer='momentum', rate=0.2)

  def begin(worker):
    x = rng.normal(size=5)
    oracle.begin(worker, x)
    stepper.begin(worker, x)

  # None rests between a pull and the next gradient, so that async_sgd's pull
  # at the start of a step is this rule's at the end of the one before.
  begin(0)
  begin(1)
  for worker in map(int, rng.integers(2, size=50)):
    assert {worker: stepper.end(worker)[:2]} == oracle.end(worker)
    oracles.check(stepper, oracle)
    begin(worker)
  for index in range(2):
    stepper.end(index)


@pytest.mark.slow
def test_two_workers_have_their_own_backups_and_one_mean_square(make):
  stepper = make(2, decay=0.95, num_ps=2, size=5)

  def find_resources(worker, name):
    """What tells two variables of one ps apart, over all graphs."""
    return {
      (v.device, v.handle.op.get_attr('container'), shared_name)
      for v in find_variables(worker, name)
      if (shared_name := v.handle.op.get_attr('shared_name'))
    }

  one, other = (find_resources(w, 'backup_of') for w in stepper.workers)
  assert len(one) == len(other) == 2
  assert not one & other
  one, other = (find_resources(w, 'mean_square') for w in stepper.workers)
  assert len(one) == 2
  assert one == other
  # And by their values: both workers pull, the other's backup stays.
  stepper.step(0, [8] * 5)
  first = read(stepper.workers[0], 'backup_of_worker_0')
  assert first == stepper.read_center()
  stepper.step(1, [2] * 5)
  assert read(stepper.workers[1], 'backup_of_worker_1') != first
  assert read(stepper.workers[0], 'backup_of_worker_0') == first


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make):
  stepper = make(dc_lambda=0.5, num_ps=2, size=2)
  stepper.step(0, [8, 2])
  stepper.leave(1)
  stepper.come_back(1)
  assert stepper.read_copy(1) == stepper.read_center() == [4, 1]
  assert read(stepper.workers[1], 'backup_of_worker_1') == [4, 1]
  # Its backup is as new: nothing is compensated.
  assert stepper.step(1, [8, 1]) == (2, 0, [6, 1])
  # The backup of the other has not been touched.
  assert read(stepper.workers[0], 'backup_of_worker_0') == [4, 1]


@pytest.mark.parametrize(
  'words, expected',
  [
    ([], (0.04, None)),
    (['--dc_lambda=0.5', '--dc_decay=0.5'], (0.5, None)),
    (['--dc_adaptive'], (0.04, 0.95)),
    (['--dc_adaptive', '--dc_lambda=2', '--dc_decay=0.5'], (2, 0.5)),
  ],
)
def test_the_flags_reach_the_rule(set_flags, monkeypatch, words, expected):
  set_flags(*words)
  assert rule.read_made_with(monkeypatch, dc_asgd, 'DcAsgd') == expected


@pytest.mark.parametrize(
  'word', ['--dc_lambda=-1', '--dc_decay=-0.1', '--dc_decay=1.1']
)
def test_flags_out_of_bounds_are_named(set_flags, word):
  with pytest.raises(flags.IllegalFlagValueError, match=word[2:]):
    set_flags(word)
