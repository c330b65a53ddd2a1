"""nonfinite: what is not finite goes as zeros, and is counted."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.logdir import report
from distmnist.transport import nonfinite
from tests.strategies import battery_test


@pytest.mark.slow
@pytest.mark.parametrize('bad', [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_becomes_zeros_and_is_said(tf_session, bad, logged):
  x = tf.placeholder(tf.float32, [3])
  with tf.device('/device:CPU:0'):
    sent = [nonfinite.guard(tf.identity(x), 0) for _ in range(2)]
  stats = report.WorkerStats(0)
  counter = nonfinite.Counter(stats)
  counter.build()
  good = [1.0, 2.0, -3.0]
  assert tf_session.run(sent[0], {x: good}).tolist() == good
  counter.look(tf_session)
  assert (stats.nonfinite_pushes, logged) == (0, [])
  for _ in range(3):
    found = tf_session.run(sent, {x: [1.0, bad, 2.0]})
    assert [value.tolist() for value in found] == [[0, 0, 0]] * 2
  counter.look(tf_session)
  assert stats.nonfinite_pushes == 3
  [line] = logged
  assert line.startswith('3 pushes had numbers that are not finite')
  counter.look(tf_session)
  assert stats.nonfinite_pushes == 3


WITH_PS = [n for n in battery_test.RULES if battery_test.needs_ps(n)]


@pytest.mark.daily(but=['async_sgd', 'sync_sgd', 'easgd', 'dc_asgd', 'ad_psgd'])
@pytest.mark.parametrize('name', WITH_PS)
@pytest.mark.slow
def test_no_rule_lets_it_into_the_center(make_stepper, set_flags, name):
  # In float16 1e6 is infinite; a first exchange of easgd moves nothing.
  set_flags('--communication_period=1', '--moving_rate=0.5')
  make = registry.load(STRATEGIES, name).make
  stepper = make_stepper(1, 1, make, size=2, rate=1.0, wire_dtype='float16')
  for _ in range(3):
    stepper.step_together([[1e6, 1e6]])
    assert stepper.read_center() == [0, 0]
  stepper.step_together([[2, 2]])
  own_way = 'ad_psgd', 'easgd', 'bmuf', 'dynsgd'  # Their copies moved.
  if name not in own_way:
    assert stepper.read_center() == [2, 2]
