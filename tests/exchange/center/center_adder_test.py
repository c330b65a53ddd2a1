"""center_adder: changes that are added as they come, or all together."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange import strategy
from distmnist.exchange.center import center_adder
from distmnist.exchange.copies import local_copies


class Halfway(strategy.Strategy):
  """d = (x - x~) / 2 goes from the copy to the center, after x <- x - g."""

  def __init__(self, cluster, period, is_sync):
    super().__init__(cluster)
    self._period = period
    self._is_sync = is_sync
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self):
    return self._copies.scope()

  def minimize(self, loss, make_optimizer, global_step):
    copies = self._copies
    self._adder = center_adder.make(
      self._is_sync, self.cluster, copies, global_step, self.mark_done
    )
    optimizer = make_optimizer(is_local=True)
    gradients = copies.compute_gradients(optimizer, loss)
    step = copies.count_local_step([copies.local_step(optimizer, gradients)])

    def make_changes():
      [x], [center] = copies.read(), copies.read_center()
      d = (x - center) / 2
      return [d], copies.add([-d])

    return self._adder.build_update(self._period, step, make_changes)

  def hooks(self, stop):
    return self._adder.hooks(stop)


@pytest.fixture
def make(make_stepper):
  """Returns make(is_sync, period=1, num_ps=1) -> a Stepper of two workers."""

  def make(is_sync, period=1, num_ps=1, size=1):
    return make_stepper(
      num_ps, 2, lambda member: Halfway(member, period, is_sync), size=size
    )

  return make


@pytest.mark.slow
def test_an_asynchronous_change_is_added_at_once(make):
  stepper = make(is_sync=False)
  # x = 4, d = 2.
  assert stepper.step(0, [8]) == (1, 0, [2])
  # x = 8, d = 3.
  assert stepper.step(1, [16]) == (2, 0, [5])
  assert stepper.read_copies() == [[2], [5]]


@pytest.mark.slow
def test_a_change_is_added_in_each_period_alone(make):
  stepper = make(is_sync=False, period=2)
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (0, 0)
  # x = 4 + 2, d = 3.
  assert stepper.step(0, [8]) == (1, 0, [3])
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (4, 4)


@pytest.mark.parametrize('num_ps', [1, pytest.param(2, marks=pytest.mark.slow)])
def test_synchronous_changes_are_summed(make, num_ps):
  stepper = make(is_sync=True, num_ps=num_ps, size=2)
  # x = [4, 2] and [8, 6]: d = [2, 1] and [4, 3], both of the center at 0.
  steps = stepper.step_together([[8, 4], [16, 12]])
  assert steps == [(1, 0, [6, 4])] * 2
  assert stepper.read_copies() == [[2, 1], [4, 3]]


def test_only_a_synchronous_one_has_a_hook(tf_session, make_cluster):
  member = make_cluster(1, 2).worker(0)
  with tf.device(member.device_setter()):
    copies = local_copies.LocalCopies(member)
    global_step = tf.train.get_or_create_global_step()
    with copies.scope():
      tf.get_variable('w', [1])
    hooks = [
      center_adder.make(is_sync, member, copies, global_step, list).hooks(None)
      for is_sync in (False, True)
    ]
  assert [len(each) for each in hooks] == [0, 1]
