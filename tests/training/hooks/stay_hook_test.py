"""stay_hook: which worker stays until the last step is saved, which does not.

benchmarks/faults.py tries it with a ps that is killed at the end.
"""

import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.strategies import ssp
from distmnist.training.hooks import stay_hook
from tests.support import in_process


class Others:
  """Stands for shutdown.Others: one box of the cluster."""

  def __init__(self, is_stop_for_all=False):
    self.saved = threading.Event()
    self.num_looks = 0
    self.is_stop_for_all = lambda: is_stop_for_all

  def say_saved(self):
    self.saved.set()

  def is_saved(self):
    self.num_looks += 1
    return self.saved.is_set()


LAST_STEP = 7


def make_hook(others, stop, save=None, pause=None):
  task = types.SimpleNamespace(
    stop=stop,
    stalls=in_process.make_stalls(),
    cluster=types.SimpleNamespace(num_workers=2),
  )
  return stay_hook.StayHook(others, task, pause, LAST_STEP, save)


@pytest.fixture
def end():
  """Returns end(others, stop, save) -> thread of a worker whose loop ends."""

  def leave(others, stop, save=None, stop_requested=True, at_step=LAST_STEP):
    def work():
      with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        session.run(step.assign(at_step))
        hook = make_hook(others, stop, save, lambda session: None)
        hook.begin()
        context = types.SimpleNamespace(
          session=session, stop_requested=stop_requested
        )
        hook.after_run(context, None)

    return in_process.start_thread(work)

  return leave


def join(thread):
  thread.join(in_process.DEADLINE_SECS)
  assert not thread.is_alive()
  return thread.errors


@pytest.mark.slow
def test_a_worker_leaves_once_the_chief_has_saved(end):
  others, saves = Others(), []
  worker = end(others, in_process.NoStop())
  worker.join(0.3)
  assert worker.is_alive()
  chief = end(others, in_process.NoStop(), saves.append)
  assert join(chief) == join(worker) == []
  assert len(saves) == 1


def test_a_worker_whose_own_hook_ends_its_loop_does_not_stay(end):
  others, saves = Others(), []
  for save in None, saves.append:
    early = end(others, in_process.NoStop(), save, at_step=LAST_STEP - 1)
    assert join(early) == []
  assert not (saves or others.num_looks or others.saved.is_set())


def test_all_stay_if_all_are_to_stop_before_the_last_step(end):
  others, saves = Others(is_stop_for_all=True), []
  chief = end(others, in_process.NoStop(), saves.append, at_step=1)
  assert join(chief) == [] and others.saved.is_set()
  assert join(end(others, in_process.NoStop(), at_step=1)) == []
  assert others.num_looks


@pytest.mark.parametrize('is_over', [True, False])
@pytest.mark.parametrize('is_asked', [True, False])
def test_a_chief_that_comes_back_after_the_last_step_lets_all_go(
  is_over, is_asked
):
  others, coord = Others(), tf.train.Coordinator()
  if is_over:
    coord.request_stop()
  stop = types.SimpleNamespace(is_requested=is_asked)
  hook = make_hook(others, stop, save=lambda session: None)
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.train.create_global_step().assign(LAST_STEP))
    hook.begin()
    hook.after_create_session(session, coord)
  # One that is asked to stop may have steps left.
  assert others.saved.is_set() == (is_over and not is_asked)


def test_a_chief_that_cannot_save_lets_nobody_go(end):
  def save(session):
    raise OSError('full')

  others = Others()
  [error] = join(end(others, in_process.NoStop(), save))
  assert isinstance(error, OSError) and not others.saved.is_set()


def test_who_is_asked_to_stop_or_is_not_at_the_end_does_not_stay(end):
  others, stop = Others(), in_process.AskedStop()
  stop.request()
  assert join(end(others, stop)) == []
  assert join(end(others, in_process.NoStop(), stop_requested=False)) == []
  assert not others.num_looks


@pytest.mark.parametrize(
  ('waits', 'num_ps', 'is_made'), [(True, 2, 1), (True, 0, 0), (False, 2, 0)]
)
def test_where_one_worker_can_go_on_alone_none_stays(waits, num_ps, is_made):
  task = types.SimpleNamespace(
    cluster=types.SimpleNamespace(num_ps=num_ps, num_workers=2),
    stop=None,
    stalls=in_process.make_stalls(),
  )
  strategy = types.SimpleNamespace(waits_for_all=waits, pause=None)
  assert len(stay_hook.make(task, strategy, None, LAST_STEP, None)) == is_made


class StopAfter(tf.train.SessionRunHook):
  def __init__(self, num_steps):
    self._left = num_steps

  def after_run(self, run_context, run_values):
    self._left -= 1
    if not self._left:
      run_context.request_stop()


@pytest.mark.slow
def test_a_chief_in_its_last_step_waits_for_none_that_stays(
  make_cluster, set_flags
):
  set_flags()
  cluster, others = make_cluster(1, 2), Others(is_stop_for_all=True)

  def work(index):
    member, stop = cluster.worker(index), in_process.NoStop()
    rule = ssp.Ssp(member, bound=0)
    with tf.device(member.device_setter()):
      step = tf.train.get_or_create_global_step()
      with rule.scope():
        w = tf.get_variable('w', [2], use_resource=True)
      update = rule.minimize(
        tf.reduce_sum(w),
        lambda **_: tf.train.GradientDescentOptimizer(0.1),
        step,
      )
    save = None if index else lambda session: None
    hooks = [
      *rule.hooks(stop),
      # The chief is ahead of the other by more than it may be.
      StopAfter(1 if index else 3),
      make_hook(others, stop, save, rule.pause),
    ]
    with cluster.make_session(index, hooks) as session:
      while not session.should_stop():
        session.run(update.train_op)

  cluster.run_workers(work)
  assert others.saved.is_set()
