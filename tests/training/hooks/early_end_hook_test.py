"""early_end_hook: a step that waits for workers that have left is ended."""

import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.lifecycle import stalls
from distmnist.training.hooks import early_end_hook


class _Others:
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
  monkeypatch.setattr(early_end_hook, '_LOOK_SECS', 0.001)
  monkeypatch.setattr(early_end_hook, '_WAIT_SECS', 0.002)
  hooks = []

  def make(others, num_spare=0):
    woken = threading.Event()
    stop = types.SimpleNamespace(wake=woken.set)
    clock = stalls.Stalls(1, 1, None)
    hook = early_end_hook.EarlyEndHook(others, num_spare, stop, clock)
    hooks.append(hook)
    hook.after_create_session(None, None)
    return hook, clock, woken

  yield make
  for hook in hooks:
    hook.end(None)
    hook._thread.join(10)
    assert not hook._thread.is_alive()


def test_a_step_that_waits_for_one_that_has_left_is_ended(begin):
  lost = tf.errors.UnavailableError(None, None, 'gone')
  others = _Others(0, lost, 1)
  hook, clock, woken = begin(others)
  clock.step_begins()
  assert woken.wait(10)
  assert others.stops == 1


def test_backup_workers_may_leave(begin):
  others = _Others(0, 1, 2)
  hook, clock, woken = begin(others, num_spare=1)
  clock.step_begins()
  assert woken.wait(10)
  assert others._answers == [2]


@pytest.mark.parametrize('num_left, num_spare', [(0, 0), (1, 1)])
def test_a_step_that_enough_make_is_not(begin, num_left, num_spare):
  others = _Others(num_left)
  hook, clock, woken = begin(others, num_spare)
  clock.step_begins()
  for _ in range(3):
    assert others.looks.acquire(timeout=10)
  assert not woken.is_set() and others.stops == 0


def test_between_two_steps_nobody_is_asked(begin):
  others = _Others(1)
  hook, clock, woken = begin(others)
  clock.step_begins()
  clock.step_ends()
  hook._is_over.set()
  hook._thread.join(10)
  assert not hook._thread.is_alive()


@pytest.mark.parametrize(
  'num_ps, is_chief, num_pushes, num_spare',
  [
    (1, True, 3, 0),
    (1, True, 2, 1),
    (1, True, 6, 0),
    (0, True, 3, None),
    (1, False, 3, None),
    (1, True, 1, None),
  ],
)
def test_a_chief_looks_where_a_step_waits_for_others(
  num_ps, is_chief, num_pushes, num_spare
):
  cluster = types.SimpleNamespace(
    num_ps=num_ps, is_chief=is_chief, num_workers=3
  )
  task = types.SimpleNamespace(cluster=cluster, stop=None, stalls=None)
  rule = types.SimpleNamespace(pushes_per_step=num_pushes)
  made = early_end_hook.make(task, rule, None)
  assert [hook._num_spare for hook in made] == (
    [] if num_spare is None else [num_spare]
  )
