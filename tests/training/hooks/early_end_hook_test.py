"""early_end_hook: a step that waits for a worker that has left is ended."""

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

  def has_any_left(self):
    self.looks.release()
    answer = self._answers.pop(0) if self._answers[1:] else self._answers[0]
    if isinstance(answer, Exception):
      raise answer
    return answer

  def stop_all(self):
    self.stops += 1


@pytest.fixture
def begin(monkeypatch):
  """Returns begin(others) -> (hook in a session, its clock, the wake-up)."""
  monkeypatch.setattr(early_end_hook, '_LOOK_SECS', 0.001)
  monkeypatch.setattr(early_end_hook, '_WAIT_SECS', 0.002)
  hooks = []

  def make(others):
    woken = threading.Event()
    stop = types.SimpleNamespace(wake=woken.set)
    clock = stalls.Stalls(1, 1, None, None)
    hook = early_end_hook.EarlyEndHook(others, stop, clock)
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
  others = _Others(False, lost, True)
  hook, clock, woken = begin(others)
  clock.step_begins()
  assert woken.wait(10)
  assert others.stops == 1


def test_a_step_that_all_make_is_not(begin):
  others = _Others(False)
  hook, clock, woken = begin(others)
  clock.step_begins()
  for _ in range(3):
    assert others.looks.acquire(timeout=10)
  assert not woken.is_set() and others.stops == 0


def test_between_two_steps_nobody_is_asked(begin):
  others = _Others(True)
  hook, clock, woken = begin(others)
  clock.step_begins()
  clock.step_ends()
  hook._is_over.set()
  hook._thread.join(10)
  assert not hook._thread.is_alive()


@pytest.mark.parametrize(
  'num_ps, is_chief, is_lock_step, expected',
  [(1, True, True, 1), (0, True, True, 0), (1, False, True, 0)]
  + [(1, True, False, 0)],
)
def test_only_a_chief_in_lock_step_looks(
  num_ps, is_chief, is_lock_step, expected
):
  cluster = types.SimpleNamespace(num_ps=num_ps, is_chief=is_chief)
  watchdog = types.SimpleNamespace(stalls=None)
  task = types.SimpleNamespace(cluster=cluster, stop=None, watchdog=watchdog)
  rule = types.SimpleNamespace(is_lock_step=is_lock_step)
  assert len(early_end_hook.make(task, rule, None)) == expected
