"""end_hook: who waits for whom at the end, and who does not.

benchmarks/faults.py tries it with a ps that is killed at the end.
"""

import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.lifecycle import stalls
from distmnist.strategies import ssp
from distmnist.training.hooks import end_hook
from tests.support import in_process


class Others:
  """Stands for shutdown.Others: one box of the cluster."""

  def __init__(self, is_stop_for_all=False):
    self.saved = threading.Event()
    self.num_looks = 0
    self.is_stop_for_all = lambda: is_stop_for_all

  def say_saved(self):
    self.saved.set()

  def wait_at_end(self, timeout_secs, pause, get_on):
    return []

  def is_saved(self):
    self.num_looks += 1
    return self.saved.is_set()


LAST_STEP = 7


class Saves:
  """Stands for a chief's save_hook.SaveHook."""

  def __init__(self, save):
    self.save_last = save
    self.look = lambda session, step: save(step)


def make_hook(
  others, stop, save=None, rule=None, is_own_loop=False, secs_silent=None
):
  task = types.SimpleNamespace(
    stop=stop,
    watchdog=types.SimpleNamespace(secs_silent=secs_silent),
    stalls=in_process.make_stalls(),
    cluster=types.SimpleNamespace(num_ps=1, num_workers=2),
  )
  rule = rule or types.SimpleNamespace(
    waits_for_all=True, pushes_per_step=2, pause=lambda session: None
  )
  return end_hook.EndHook(
    *(task, others, rule, lambda: LAST_STEP, save and Saves(save)),
    is_own_loop=is_own_loop,
  )


@pytest.fixture
def end():
  """Returns end(others, stop, save) -> thread of a worker whose loop ends."""

  def leave(others, stop, save=None, stop_requested=True, at_step=LAST_STEP):
    def work():
      with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        session.run(step.assign(at_step))
        hook = make_hook(others, stop, save)
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
  ('waits', 'num_pushes', 'num_ps', 'expected'),
  [
    (True, 3, 1, end_hook.Waits(True, False, 0)),
    (True, 2, 1, end_hook.Waits(True, False, 1)),  # A backup worker.
    (True, 6, 1, end_hook.Waits(True, False, 0)),
    (True, 1, 2, end_hook.Waits(True, True, None)),
    (False, 1, 2, end_hook.Waits(False, True, None)),
    (True, 3, 0, end_hook.Waits(False, False, None, True)),
  ],
)
def test_the_rule_and_the_cluster_say_who_waits_for_whom(
  waits, num_pushes, num_ps, expected
):
  cluster = types.SimpleNamespace(num_ps=num_ps, num_workers=3)
  rule = types.SimpleNamespace(waits_for_all=waits, pushes_per_step=num_pushes)
  assert end_hook.find_waits(cluster, rule) == expected


def test_a_chief_without_input_goes_on_saving_while_the_others_make_steps(
  set_flags,
):
  set_flags()
  looks, steps, is_alive = [], iter([3, 5, 5, 5]), [True, False]

  class Rule:
    waits_for_all, pushes_per_step = False, 1

    def pause(self, session):
      looks.append(('pause', session))

  class Session:
    def run_step_fn(self, look):
      return look(None)

    def run(self, fetches):
      return next(steps)

  others = Others()
  others.wait_at_end = lambda secs, pause, get_on: [
    get_on(['worker 1']) for _ in range(4)
  ]
  hook = make_hook(
    *(others, in_process.NoStop(), looks.append, Rule()),
    secs_silent=lambda name: 0.0 if is_alive.pop(0) else None,
  )
  session = Session()
  with tf.Graph().as_default():
    tf.train.create_global_step()
    hook.begin()
  hook.after_create_session(session, tf.train.Coordinator())
  hook.outlast(session)
  # Two steps, a wait for one that is alive, and one for one that is not.
  assert hook.workers == [True, True, True, False]
  paused = 'pause', session
  assert looks == [paused, 3, paused, 5, paused, 5, paused, 5]


@pytest.mark.slow
def test_the_chief_waits_and_then_saves_what_the_others_have_added(set_flags):
  set_flags('--end_timeout_secs=7')
  done, others = [], Others()

  def wait_at_end(secs, pause, get_on):
    # However busy the others are, it waits no longer.
    done.append((secs, get_on(['worker 1'])))
    return ['stats']

  others.wait_at_end = wait_at_end
  hook = make_hook(others, in_process.NoStop(), done.append)
  hook.end('saved')
  assert done == [(7, False), 'saved']
  assert hook.workers == ['stats']
  make_hook(others, in_process.NoStop()).end('a session')  # No chief.
  assert len(done) == 2


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
      make_hook(others, stop, save, rule),
    ]
    with cluster.make_session(index, hooks) as session:
      while not session.should_stop():
        session.run(update.train_op)

  cluster.run_workers(work)
  assert others.saved.is_set()


class _Left:
  """Answers as scripted, the last answer for ever."""

  def __init__(self, *answers):
    self._answers = list(answers)
    self.looks, self.stops = threading.Semaphore(0), 0

  def num_left(self):
    self.looks.release()
    answer = self._answers.pop(0) if self._answers[1:] else self._answers[0]
    if isinstance(answer, Exception):
      raise answer
    return answer

  def stop_all(self):
    self.stops += 1


@pytest.fixture
def begin(monkeypatch):
  """Returns begin(others, num_spare) -> (hook, its clock, the wake-up)."""
  monkeypatch.setattr(end_hook, '_LEFT_LOOK_SECS', 0.001)
  monkeypatch.setattr(end_hook, '_LONG_STEP_SECS', 0.002)
  hooks = []

  def make(others, num_spare=0):
    woken = threading.Event()
    task = types.SimpleNamespace(
      stop=types.SimpleNamespace(wake=woken.set, is_requested=True),
      stalls=stalls.Stalls(1, 1, None),
      cluster=types.SimpleNamespace(num_ps=1, num_workers=3),
    )
    rule = types.SimpleNamespace(
      waits_for_all=True, pushes_per_step=3 - num_spare
    )
    hook = end_hook.EndHook(
      *(task, others, rule, lambda: LAST_STEP, Saves(lambda session: None)),
      is_own_loop=True,
    )
    hooks.append(hook)
    hook.after_create_session(None, tf.train.Coordinator())
    return hook, task.stalls, woken

  yield make
  for hook in hooks:
    hook.end(None)
    hook._watch.join(60)
    assert not hook._watch.is_alive()


def test_a_step_that_waits_for_one_that_has_left_is_ended(begin):
  lost = tf.errors.UnavailableError(None, None, 'gone')
  others = _Left(0, lost, 1)
  hook, clock, woken = begin(others)
  clock.step_begins()
  assert woken.wait(60)
  assert others.stops == 1


def test_backup_workers_may_leave(begin):
  others = _Left(0, 1, 2)
  hook, clock, woken = begin(others, num_spare=1)
  clock.step_begins()
  assert woken.wait(60)
  assert others._answers == [2]


@pytest.mark.parametrize('num_left, num_spare', [(0, 0), (1, 1)])
def test_a_step_that_enough_make_is_not(begin, num_left, num_spare):
  others = _Left(num_left)
  hook, clock, woken = begin(others, num_spare)
  clock.step_begins()
  for _ in range(3):
    assert others.looks.acquire(timeout=60)
  assert not woken.is_set() and others.stops == 0


def test_between_two_steps_nobody_is_asked(begin):
  others = _Left(1)
  hook, clock, woken = begin(others)
  clock.step_begins()
  clock.step_ends()
  hook._is_over.set()
  hook._watch.join(60)
  assert not hook._watch.is_alive()


@pytest.mark.parametrize(
  ('is_chief', 'is_own_loop', 'looks'),
  [(True, True, True), (True, False, False), (False, True, False)],
)
def test_the_chief_looks_who_has_left_a_scripts_own_loop(
  is_chief, is_own_loop, looks
):
  save = (lambda session: None) if is_chief else None
  hook = make_hook(Others(), in_process.NoStop(), save, is_own_loop=is_own_loop)
  assert bool(hook._watch) == looks
