"""bmuf: two workers stepped by hand, and a NumPy oracle."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster
from distmnist.nn import optimizers
from distmnist.strategies import bmuf
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, num_workers=2, period=1, mu=0.5, zeta=1, ...)."""

  def make_bmuf(num_ps=1, num_workers=2, period=1, mu=0.5, zeta=1, **settings):
    return make_stepper(
      num_ps,
      num_workers,
      lambda member: bmuf.Bmuf(member, period, mu, zeta),
      **settings,
    )

  return make_bmuf


@pytest.mark.slow
def test_without_momentum_it_averages_the_models(make):
  stepper = make(period=2, mu=0)
  # x <- x - 0.5 (x - 8): 0, 4, 6. The center stays.
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copy(0) == [4]
  # Towards 4: 0, 2, 3.
  assert stepper.step(1, [4]) == (0, -1, [0])
  assert stepper.read_copy(1) == [2]
  assert stepper.step_together([[8], [4]]) == [(1, 0, [4.5])] * 2
  assert stepper.read_copy(0) == stepper.read_copy(1) == [4.5]
  # 4.5, 6.25, 7.125 and 4.5, 2.25, 1.125: the mean is 4.125.
  assert stepper.step_together([[8], [0]]) == [(1, -1, [4.5])] * 2
  assert stepper.step_together([[8], [0]]) == [(2, 0, [4.125])] * 2


@pytest.mark.slow
def test_the_change_of_a_block_has_momentum(make):
  stepper = make(mu=0.5)
  # The copies are at 4 and 2: D = 0.5 * 0 + 3.
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  # They are at 5 and 3, G = 1: D = 0.5 * 3 + 1 = 2.5.
  assert stepper.step_together([[7], [3]]) == [(2, 0, [5.5])] * 2
  # They do not move, G = 0: D = 0.5 * 2.5.
  assert stepper.step_together([[5.5], [5.5]]) == [(3, 0, [6.75])] * 2
  assert stepper.read_copy(0) == stepper.read_copy(1) == [6.75]


@pytest.mark.slow
def test_the_block_learning_rate_scales_what_is_new(make):
  stepper = make(mu=0.5, zeta=2)
  # D = 0 + 2 * 3.
  assert stepper.step_together([[8], [4]]) == [(1, 0, [6])] * 2
  # The copies are at 7 and 4, G = -0.5: D = 0.5 * 6 - 2 * 0.5 = 2.
  assert stepper.step_together([[8], [2]]) == [(2, 0, [8])] * 2


@pytest.mark.slow
def test_a_change_too_small_for_the_dtype_of_the_wire_counts(make):
  stepper = make(mu=0, wire_dtype='bfloat16')
  # Neighbours of 1000 are 996 and 1004 on the wire.
  assert stepper.step_together([[2000]] * 2) == [(1, 0, [1000])] * 2
  for step in range(2, 6):
    x = stepper.read_copy(0)[0] + 2
    found = stepper.step_together([[x]] * 2)
    assert found == [(step, 0, [1000 + step - 1])] * 2


@pytest.mark.slow
def test_three_workers_make_one_mean(make):
  stepper = make(num_workers=3, mu=0)
  found = stepper.step_together([[6], [12], [18]])
  assert found == [(1, 0, [6])] * 3  # The mean of 3, 6 and 9.


@pytest.mark.slow
def test_who_has_pushed_waits_for_the_other(make):
  stepper = make(period=2)
  stepper.step(1, [8])
  stepper.begin(1, [8])
  stepper.release(1)
  assert not stepper.is_done(1)
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert not stepper.is_done(1)
  stepper.begin(0, [8])
  stepper.release(0)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [6])


class Oracle(oracles.Oracle):
  """Each T-th step all push the change of a block: D = mu D + zeta mean."""

  waits = True

  def __init__(self, period, mu, zeta, **how):
    super().__init__(**how)
    self._period, self._mu, self._zeta = period, mu, zeta
    self._delta, self._given = 0, []

  def end(self, i):
    # The velocity is the worker's own: no exchange touches it.
    self.step_locally(i)
    if self.local_steps[i] % self._period:
      return {i: (self.step, -1)}
    self._given.append(self.wire(self.copies[i] - self.pulled[i]))
    if len(self._given) < self.num_workers:
      return {}
    block_change, self._given = np.mean(self._given, axis=0), []
    self._delta = self._mu * self._delta + self._zeta * block_change
    self.center = self.center + self._delta
    self.step += 1
    for j in range(self.num_workers):
      self.pull(j)
    return dict.fromkeys(range(self.num_workers), (self.step, 0))


def block(period, mu=0.5, zeta=1):
  return {'period': period, 'mu': mu, 'zeta': zeta}


RULE = rule.Rule(
  lambda member, period, mu, zeta: bmuf.Bmuf(member, period, mu, zeta),
  Oracle,
  flags=(
    '--communication_period=2',
    '--block_momentum=0.5',
    '--block_learning_rate=0.8',
  ),
  settings=block(2, 0.5, 0.8),
  placement=[
    rule.Placement(
      ['{w}', 'bmuf/{w}/block_delta'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'bmuf/token',
        'bmuf/known_step',
        'bmuf/as_pulled',
        'bmuf/local_step',
      ],
      block(1),
    )
  ],
  traffic=[rule.Traffic([(0, 0), (20, 20)], block(2), is_together=True)],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, block(3, *of_block), {-1, 0}, 0.1)
    # The filter sees the mean of the copies, whatever has moved them.
    for num_ps, optimizer, *of_block in (
      (1, 'sgd', 0, 1),
      (2, 'momentum', 0.8, 0.7),
    )
  ],
)


@pytest.mark.slow
def test_the_slots_of_a_worker_survive_the_exchange(make):
  stepper = make(mu=0, optimizer='momentum')
  # v = -8 and x = 4 for both; there the gradient of 4 is 0 and v = -7.2.
  assert stepper.step_together([[8], [8]]) == [(1, 0, [4])] * 2
  found = stepper.step_together([[4], [4]])
  assert [step[:2] for step in found] == [(2, 0)] * 2
  assert found[0].center == pytest.approx([4 + 0.5 * 0.9 * 8])


def test_delta_goes_into_checkpoints_and_the_copies_do_not(
  tf_session, tmp_path
):
  global_step = tf.train.get_or_create_global_step()
  rule = bmuf.Bmuf(cluster.Cluster(), 1, 0.5, 1)
  with rule.scope():
    w = tf.get_variable('w', [2], initializer=tf.ones_initializer())
  rule.minimize(
    tf.reduce_sum(w),
    lambda is_local: optimizers.make_optimizer('momentum', 0.1),
    global_step,
  )
  tf_session.run(tf.global_variables_initializer())
  path = tf.train.Saver().save(tf_session, str(tmp_path / 'model.ckpt'))
  saved = tf.train.load_checkpoint(path)
  names = set(saved.get_variable_to_shape_map())
  assert names == {'global_step', 'w', 'bmuf/w/block_delta'}
  assert saved.get_tensor('bmuf/w/block_delta').tolist() == [0, 0]


@pytest.mark.parametrize(
  'word',
  [
    '--communication_period=0',
    '--block_momentum=-0.1',
    '--block_momentum=1.1',
    '--block_momentum=x',
    '--block_learning_rate=-1',
  ],
)
def test_a_flag_out_of_its_bounds_is_refused(set_flags, word):
  with pytest.raises(flags.IllegalFlagValueError, match=re.escape(word[2:])):
    set_flags(word)


@pytest.mark.parametrize(
  'words, num_workers, expected',
  [
    ([], 2, (10, 1 / 2, 1)),  # mu is 1 - 1 / n.
    ([], 3, (10, 2 / 3, 1)),
    (
      [
        '--communication_period=2',
        '--block_momentum=0',
        '--block_learning_rate=0.5',
      ],
      2,
      (2, 0, 0.5),
    ),
  ],
)
def test_the_flags_reach_the_rule(
  set_flags, monkeypatch, words, num_workers, expected
):
  set_flags(*words)
  found = rule.read_made_with(monkeypatch, bmuf, 'Bmuf', num_workers)
  assert found == pytest.approx(expected)


def test_a_block_is_of_the_batches_of_all(set_flags):
  set_flags()
  member = cluster.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 0)
  assert bmuf.make(member).batches_per_update == 20
