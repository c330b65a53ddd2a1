"""graph_warmup: what is held back in a warm-up, and the pull after it."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.exchange.steps import graph_warmup
from distmnist.nn import optimizers
from distmnist.strategies import async_sgd, downpour

CPU = '/device:CPU:0'


@pytest.fixture
def warmup(tf_session):
  """A Warmup in the default graph."""
  return graph_warmup.Warmup(CPU)


def start(session):
  session.run(
    [tf.global_variables_initializer(), tf.local_variables_initializer()]
  )


def test_a_session_does_not_begin_in_a_warmup(tf_session, warmup):
  start(tf_session)
  [is_on] = tf.local_variables()
  assert (is_on.op.name, is_on.device) == ('is_warmup', CPU)
  assert not tf_session.run(is_on)


@pytest.mark.parametrize('dtype', [tf.float32, tf.int64])
def test_metrics_of_a_warmup_are_zeros(tf_session, warmup, dtype):
  number = warmup.hold_back(tf.constant([3, 5], dtype))
  found = warmup.or_zeros(number + 1)
  start(tf_session)
  for is_on in (False, True, False):
    tf_session.run(warmup.turn(is_on))
    assert tf_session.run(found).tolist() == ([0, 0] if is_on else [4, 6])


class Steps:
  """Stands for fused_steps.Steps with two kinds of runs, which are counted."""

  def __init__(self, warmup, step):
    self._number = tf.placeholder(tf.float32, [])
    held = warmup.hold_back(self._number)
    self.seen = tf.get_local_variable('seen', initializer=0.0)
    self._one = warmup.or_zeros(step(held))
    # It does not depend on the batch, and so runs.
    self._two = self.seen.assign_add(self._number)

  def find_all_runs(self):
    return [(self._one, {self._number: 4}), (self._two, {self._number: 5})]

  def run(self, session, number):
    return session.run(self._one, {self._number: number})


def test_each_kind_of_run_is_run_and_the_copies_are_pulled_late(
  tf_session, warmup
):
  center = tf.get_variable('w', initializer=1.0)
  copy = tf.get_local_variable('copy', initializer=-1.0)
  graph_record.current().copies.append(copy)
  pull = copy.assign(center.read_value()).op
  graph_record.current().pulls.append(pull)
  steps = Steps(warmup, center.assign_add)
  warmup.build()
  start(tf_session)

  warmup.run(tf_session, steps.find_all_runs())
  assert tf_session.run([steps.seen, center, copy]) == [5, 1, -1]
  # Another worker pushes before this one has made a step.
  center.load(20.0, tf_session)
  warmup.pull_anew(tf_session)
  assert tf_session.run(copy) == 20
  assert steps.run(tf_session, 4) == 24  # The warm-up is over.
  # Later runs do not pull: that is for the rule to do.
  warmup.pull_anew(tf_session)
  assert tf_session.run(copy) == 20
  # A session that was recovered has a warm-up of its own.
  warmup.run(tf_session, steps.find_all_runs())
  assert tf_session.run([steps.seen, center]) == [10, 24]
  warmup.pull_anew(tf_session)
  assert tf_session.run(copy) == 24


# With a penalty on weights alone beside the loss, or in its place.
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, has_loss', [(async_sgd, True), (async_sgd, False), (downpour, False)]
)
def test_a_gradient_that_needs_no_batch_is_not_applied(
  make_cluster, set_flags, rule, has_loss
):
  set_flags('--pull_ahead=1', '--optimizer=sgd', '--learning_rate=1')
  cluster = make_cluster(2, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    warmup = graph_warmup.Warmup(member.cpu_device)
    batch = warmup.hold_back(tf.constant(4.0))
    strategy = rule.make(member)
    with tf.device(member.device_setter()):
      step = tf.train.get_or_create_global_step()
      with strategy.scope():
        w, v = (tf.get_variable(name, initializer=8.0) for name in 'wv')
      loss = v + (w * batch if has_loss else w)
      make_optimizer, _ = optimizers.from_flags(step, 1, 1.0)
      update = strategy.minimize(loss, make_optimizer, step)
    warmup.hold_back_changes([update.train_op])
    done = warmup.or_zeros(update.train_op)
    center = [step, *tf.trainable_variables()]
    with tf.Session(cluster.servers[0].target) as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      session.run(warmup.turn(True))
      session.run(done)
      assert session.run(center) == [0, 8, 8]
      session.run(warmup.turn(False))
      session.run(done)
      assert session.run(center) == [1, 4 if has_loss else 7, 7]
