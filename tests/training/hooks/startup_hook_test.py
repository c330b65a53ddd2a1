"""startup_hook: when each worker begins."""

import types

import pytest

from distmnist.common import cli
from distmnist.training.hooks import startup_hook
from tests.support import in_process


class Session:
  """A global step that others move by 4 between two looks."""

  def __init__(self, step):
    self.step = step

  def run(self, global_step):
    assert global_step == 'global_step'
    self.step += 4
    return self.step - 4


class Stalls:
  def __init__(self):
    self.told = []

  def busy(self, what, waits_for_others=False):
    assert waits_for_others  # It has no limit of its own.
    self.told.append(what)


class NoWait(in_process.NoStop):
  num_waits = 0

  def wait(self, secs):
    assert secs > 0
    self.num_waits += 1


def begin(step, start_step, stop=None, is_stop_for_all=lambda: False):
  """Returns (Session, NoWait, Stalls) after a worker's begin."""
  session, stalls, stop = Session(step), Stalls(), stop or NoWait()
  startup_hook.StartupHook(
    start_step, 'global_step', stop, stalls, is_stop_for_all
  ).after_create_session(session, None)
  return session, stop, stalls


def test_a_worker_begins_when_the_others_are_there(logged):
  session, stop, stalls = begin(0, 10)
  assert session.step - 4 == 12
  assert stop.num_waits == 3
  # Each step of the others is news: a worker that waits is not stalled.
  assert stalls.told == ['the wait for global step 10'] * 3
  assert logged == [
    'waits for global step 10 to start (--startup_delay_steps); it is 0 now'
  ]


def test_one_that_comes_back_later_does_not_wait():
  _, stop, stalls = begin(10, 10)
  assert stop.num_waits == 0 and not stalls.told


def test_a_stop_ends_the_wait():
  stop = NoWait()
  session, _, _ = begin(0, 10, stop, lambda: stop.num_waits == 1)
  assert session.step == 4
  stop = NoWait()
  stop.is_requested = True
  assert begin(0, 10, stop)[0].step == 0


def make_worker(index, num_workers=3):
  return types.SimpleNamespace(task_index=index, num_workers=num_workers)


@pytest.mark.parametrize('index, step', [(0, 0), (1, 40), (2, 80)])
def test_worker_k_starts_k_times_as_late(set_flags, index, step):
  set_flags('--startup_delay_steps=40')
  assert startup_hook.find_start(make_worker(index), 81) == step


def test_without_the_flag_or_others_there_is_no_delay(set_flags):
  set_flags()
  assert startup_hook.find_start(make_worker(2), 9) == 0
  set_flags('--startup_delay_steps=40')
  assert startup_hook.find_start(make_worker(0, 1), 9) == 0


def test_a_worker_that_would_never_start_is_refused(set_flags):
  set_flags('--startup_delay_steps=40')
  with pytest.raises(
    cli.UsageError,
    match='lets worker 2 start at global step 80, and the training ends at 80: '
    'expected at most 39',
  ):
    startup_hook.find_start(make_worker(0), 80)
