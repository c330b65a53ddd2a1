"""stalls: what takes too long is named, steps and all else."""

import gc
import re
import sys
import threading
import types

import pytest

from distmnist.cluster import incarnations
from distmnist.common import cli, console
from distmnist.lifecycle import stalls
from tests.support import in_process

DEADLINE_SECS = 60


@pytest.fixture
def make():
  """Returns make(warn_secs, fail_secs) -> (Stalls, stop, lines, said)."""
  is_closed = threading.Event()
  threads = []

  def make(warn_secs=0.2, fail_secs=60):
    lines, said, stop = [], threading.Event(), in_process.KeepingStop()

    def say(line):
      lines.append(line)
      said.set()

    console.print_logs(say)
    watched = stalls.Stalls(warn_secs, fail_secs, lambda: 'all answer', stop)
    threads.append(threading.Thread(target=watched.watch, args=(is_closed,)))
    threads[-1].start()
    return watched, stop, lines, said

  yield make
  is_closed.set()
  for thread in threads:
    thread.join(DEADLINE_SECS)


@pytest.mark.slow
def test_a_step_that_takes_long_says_what_its_wait_is_made_of(make):
  watched, _, lines, said = make()
  assert not said.wait(0.5)  # Nothing has begun.
  watched.describe_wait = lambda: 'worker 1 has a token'
  watched.step_begins()
  assert said.wait(DEADLINE_SECS)
  watched.step_ends()
  assert watched.num_steps == 1
  assert re.fullmatch(
    r'no step for \d+ s: all answer; worker 1 has a token', lines[0]
  )


def test_what_is_no_step_is_named_with_the_place_in_our_code(make):
  watched, _, lines, said = make()
  watched.busy('what follows a step')

  # The place is not the wrapper that all calls of a session go through.
  session = types.SimpleNamespace(run=said.wait)
  incarnations.LossHook(None, None)._name_losses(session)

  def save():
    assert session.run(DEADLINE_SECS)

  stalls_globals = vars(stalls)
  stalls_globals['_PACKAGE'], kept = __file__, stalls_globals['_PACKAGE']
  try:
    save()
  finally:
    stalls_globals['_PACKAGE'] = kept
  watched.idle()
  assert re.fullmatch(
    r'what follows a step \(stalls_test.py:\d+, save\) has taken \d+ s so far: '
    'all answer',
    lines[0],
  )


def test_garbage_is_left_alone_while_the_place_is_looked_for():
  freed_in = []

  class Cycle:
    def __init__(self):
      self.itself = self
      self.local = threading.local()  # Freeing it takes the lock of the look.

    def __del__(self):
      freed_in.append(sys._getframe(1).f_code.co_name)

  before = gc.get_threshold()
  gc.set_threshold(1)
  try:
    for _ in range(100):
      Cycle()
      stalls._read_frames()
  finally:
    gc.set_threshold(*before)
  assert gc.isenabled()
  assert freed_in and '_read_frames' not in freed_in


def test_in_the_end_it_is_given_up_a_save_as_well(make):
  watched, stop, _, _ = make(0.1, 0.4)
  watched.busy('the end')
  assert stop.given_up.wait(DEADLINE_SECS)
  assert isinstance(stop.error, cli.LostError)
  assert 'given up (--stall_fail_secs=0.4)' in str(stop.error)


def test_only_a_step_counts_as_one(make):
  watched, *_ = make()
  assert watched.step_secs() == 0
  watched.step_begins()
  assert 0 < watched.step_secs() <= watched.secs()
  watched.busy('a save')
  assert watched.step_secs() == 0 < watched.secs()


def test_each_part_of_a_session_is_watched():
  class Stalls:
    def __init__(self):
      self.calls = []

    def busy(self, what):
      self.calls.append(what)

    def step_begins(self):
      self.calls.append('step')

    def step_ends(self):
      self.calls.append('step ends')

  watched = Stalls()
  hook = stalls.StallHook(watched)
  hook.after_create_session(None, None)
  hook.before_run(None)
  hook.after_run(None, None)
  hook.end(None)
  assert watched.calls == [
    'the start of a session',
    'step',
    'step ends',
    'what follows a step',
    'the end',
  ]
