"""stalls: what takes too long is named, steps and all else."""

import gc
import re
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.cluster import incarnations
from distmnist.common import cli, console
from distmnist.data import streamed
from distmnist.lifecycle import stalls
from tests.support import in_process

DEADLINE_SECS = 60


class Others:
  """Stands for watchdog.Watchdog."""

  def __init__(self, silent='', busy='', silent_workers=''):
    self._silent, self._busy = silent, busy
    self._silent_workers = silent_workers

  def describe_silent(self, with_workers):
    return self._silent or (self._silent_workers if with_workers else '')

  def describe_busy(self):
    return self._busy


class Clock:
  """Stands for `time` where stalls are watched: a test moves it on.

  Attributes:
    now: seconds, a float.
  """

  def __init__(self):
    self.now = time.monotonic()
    self._num_looks = 0
    self._looked = threading.Condition()

  def monotonic(self):
    if threading.current_thread() is not threading.main_thread():
      with self._looked:
        self._num_looks += 1
        self._looked.notify_all()
    return self.now

  def wait_for_looks(self):
    """Returns once the watch has acted upon the time of now."""
    with self._looked:
      wanted = self._num_looks + 5  # It asks up to four times before it acts.
      assert self._looked.wait_for(
        lambda: self._num_looks >= wanted, DEADLINE_SECS
      )


@pytest.fixture
def clock(monkeypatch):
  made = Clock()
  for module in stalls, console:
    monkeypatch.setattr(module, 'time', made)
  monkeypatch.setattr(console.Wait, 'last_look', console.Wait.last_look)
  return made


@pytest.fixture
def make():
  """Returns make(warn_secs, fail_secs) -> (Stalls, stop, lines, said)."""
  made = []

  def make(warn_secs=0.05, fail_secs=60):
    lines, said, stop = [], threading.Event(), in_process.KeepingStop()

    def say(line):
      lines.append(line)
      said.set()

    console.print_logs(say)
    made.append(stalls.Stalls(warn_secs, fail_secs, stop).start())
    return made[-1], stop, lines, said

  yield make
  for each in made:
    each.close()


@pytest.mark.slow
def test_a_step_that_takes_long_says_what_its_wait_is_made_of(make):
  watched, _, lines, said = make()
  assert not said.wait(0.2)  # Nothing has begun.
  watched.step_begins(describe_wait=lambda: 'worker 1 has a token')
  assert said.wait(DEADLINE_SECS)
  watched.step_ends()
  assert watched.num_steps == 1
  assert re.fullmatch(
    r'no step for \d+ s: all tasks answer, .*; worker 1 has a token; .* 60 s '
    r'\(--stall_fail_secs\)',
    lines[0],
  )


def test_what_is_no_step_is_named_with_the_place_in_our_code(make):
  watched, _, lines, said = make()
  watched.busy('what follows a step')

  # The place is not the wrapper that all calls of a session go through.
  watch = incarnations.LossWatch(None, None)
  run = watch.begin_session(None, None, said.wait)

  def save():
    assert run(DEADLINE_SECS)

  save()
  watched.idle()
  # It asks no other task, so nothing is said of others.
  assert re.fullmatch(
    r'what follows a step \(stalls_test.py:\d+, save\) has taken \d+ s so far',
    lines[0],
  )


@pytest.mark.parametrize(
  ('silent', 'busy', 'waits', 'expected'),
  [
    ('ps 1, gone', '', False, 'waiting for ps 1, gone'),
    ('', 'worker 1 is at a save', True, 'worker 1 is at a save'),
    ('', 'worker 1 is at a save', False, 'all tasks answer, and none says .*'),
    ('', '', True, 'all tasks answer, and none says .*'),
  ],
)
def test_the_cause_of_a_long_step_is_the_nearest_that_is_known(
  make, silent, busy, waits, expected
):
  watched, _, lines, said = make()
  watched.ask_about_others(Others(silent, busy))
  watched.step_begins(waits)
  assert said.wait(DEADLINE_SECS)
  assert re.fullmatch(rf'no step for \d+ s: {expected}; [^;]*', lines[0])


@pytest.mark.parametrize(
  ('silent', 'expected'),
  [('ps 1, gone', 'waiting for ps 1, gone'), ('', 'all tasks answer')],
)
def test_a_wait_for_others_is_explained_by_who_is_silent(
  make, silent, expected
):
  watched, _, lines, said = make(0.05)
  watched.ask_about_others(Others(silent))
  watched.busy('the check-in', waits_for_others=True)
  assert said.wait(DEADLINE_SECS)
  assert re.fullmatch(
    rf'the check-in .*has taken \d+ s so far: {expected}', lines[0]
  )


def test_a_worker_that_is_gone_does_not_hold_up_steps_that_wait_for_none(make):
  watched, _, lines, said = make()
  watched.ask_about_others(Others(silent_workers='worker 1'))
  watched.step_begins()
  assert said.wait(DEADLINE_SECS)
  assert ' s: all ps answer; not so worker 1; ' in lines[0]


def test_a_function_in_the_graph_is_named_by_file_and_line(make):
  watched, _, lines, said = make()

  def sleep():
    watched.step_begins()  # Not sooner, or its line might come first.
    assert said.wait(DEADLINE_SECS)
    return 1.0

  with tf.Graph().as_default(), tf.Session() as session:
    slow = tf.py_func(sleep, [], tf.float64)
    session.run(slow)
  assert re.fullmatch(
    r'no step for \d+ s: this task runs a Python function in its graph '
    r'\(stalls_test.py:\d+, sleep\); [^;]*',
    lines[0],
  )


def test_a_batch_that_does_not_come_is_named_by_the_file_of_its_reader(
  make, set_flags
):
  set_flags()
  watched, _, lines, said = make(0.2)

  class Reader:
    num_examples = 4
    begin = None

    def read(self, indices):
      if self.begin:
        self.begin()  # Not sooner, or its line might come first.
        assert said.wait(DEADLINE_SECS)
      return np.zeros([len(indices), 2]), np.zeros(len(indices))

  reader = Reader()
  examples = streamed.Streamed(reader)
  reader.begin = watched.step_begins
  examples.take(np.array([0, 1, 2]))
  assert re.fullmatch(
    r'no step for \d+ s: this task waits for the next batch of stalls_test.py'
    '; [^;]*',
    lines[0],
  )
  said.clear()
  reader.begin = lambda: watched.busy('the evaluation')
  examples.slice(0, 4)
  assert re.fullmatch(
    r'the evaluation \(stalls_test.py:\d+, read\) has taken \d+ s so far: it '
    'waits for examples of stalls_test.py',
    lines[-1],
  )


def test_the_watch_goes_on_though_no_line_can_be_written(clock, make):
  watched, stop, lines, _ = make(0.05, 1)
  hung = threading.Event()

  def write(line):
    assert hung.wait(DEADLINE_SECS)
    lines.append(line)

  console.print_logs(write)
  watched.busy('the report')
  clock.now += 0.5
  clock.wait_for_looks()
  clock.now += 1
  assert stop.given_up.wait(DEADLINE_SECS)
  assert str(stop.error).startswith('the report') and not lines
  hung.set()


def test_the_watch_goes_on_though_a_cause_cannot_be_found(clock, make):
  watched, stop, lines, said = make(0.05, 1)

  def fail():
    raise ValueError

  watched.step_begins(describe_wait=fail)
  clock.now += 0.5
  assert said.wait(DEADLINE_SECS)
  clock.now += 1
  assert stop.given_up.wait(DEADLINE_SECS)
  assert 'the cause cannot be found (ValueError)' in lines[0]


def test_what_has_a_limit_of_its_own_is_watched_after_it(clock, make):
  watched, stop, *_ = make(0.05, 1)
  watched.busy('the wait for each ps', own_limit_secs=5)
  clock.now += 5.9
  clock.wait_for_looks()
  assert not stop.given_up.is_set()
  clock.now += 0.2
  assert stop.given_up.wait(DEADLINE_SECS)


def test_lines_of_a_wait_of_its_own_are_no_reason_for_more(clock, make):
  watched, _, lines, said = make(0.05)
  wait = console.Wait(60)
  watched.busy('the wait for each ps', own_limit_secs=60)
  for _ in range(4):
    wait.is_over('for ps 0')
    clock.now += 1
    clock.wait_for_looks()
  assert lines == ['waiting for ps 0']
  said.clear()
  clock.now += stalls._LOOK_SECS  # It hangs in something else.
  assert said.wait(DEADLINE_SECS)
  assert re.fullmatch(
    r'the wait for each ps .* has taken \d+ s so far.*', lines[-1]
  )


def test_what_may_take_as_long_as_it_likes_has_lines_and_no_end(clock, make):
  watched, stop, _, said = make(0.05, 0.1)
  watched.busy('the loading of the data', may_fail=False)
  for _ in range(4):
    clock.now += 1
    assert said.wait(DEADLINE_SECS)
    said.clear()
  assert not stop.given_up.is_set()


def test_what_comes_on_is_not_given_up(clock, make):
  watched, stop, *_ = make(0.05, 1)
  watched.busy('the reading of a checkpoint')
  for _ in range(3):
    clock.now += 0.9
    clock.wait_for_looks()
    assert not stop.given_up.is_set()
    watched.goes_on()
  clock.now += 1.1
  assert stop.given_up.wait(DEADLINE_SECS)


def test_what_runs_beside_the_steps_is_watched_with_them(clock, make):
  watched, stop, _, _ = make(0.05, 1)
  has_begun, is_given_up = threading.Event(), threading.Event()

  def save():
    with watched.beside('a save beside the steps'):
      has_begun.set()
      assert is_given_up.wait(DEADLINE_SECS)

  thread = in_process.start_thread(save)
  assert has_begun.wait(DEADLINE_SECS)
  clock.now += 1.1
  while not stop.given_up.wait(0.01):
    watched.step_begins()
    watched.step_ends()
  assert str(stop.error).startswith('a save beside the steps has taken')
  is_given_up.set()
  thread.join(DEADLINE_SECS)
  assert not thread.errors


def test_others_are_told_what_this_task_does_and_not_what_it_waits_for(
  monkeypatch,
):
  monkeypatch.setattr(stalls, 'TELL_SECS', 0.0)
  watched = stalls.Stalls(60, 60, None)
  assert watched.describe_own() == ''
  watched.busy('the last save')
  assert watched.describe_own().startswith('is at the last save (')
  watched.busy('the start of a session', waits_for_others=True)
  assert watched.describe_own() == ''
  watched.step_begins()
  assert watched.describe_own() == ''


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
  # From Python 3.12 on garbage is collected between bytecodes only, so never
  # while a call holds the interpreter's lock.
  assert freed_in
  assert sys.version_info >= (3, 12) or '_read_uncollected' not in freed_in


def test_garbage_is_collected_again_whoever_looks_for_the_place(monkeypatch):
  first, second = threading.current_thread(), None
  has_asked, has_ended = threading.Event(), threading.Event()
  is_enabled = True

  class Collector:
    def isenabled(self):
      found = is_enabled
      if threading.current_thread() is second:
        has_asked.set()
        has_ended.wait(DEADLINE_SECS)
      return found

    def disable(self):
      nonlocal is_enabled, second
      is_enabled = False
      if threading.current_thread() is first:
        second = threading.Thread(target=stalls._read_frames)
        second.start()
        has_asked.wait(0.5)  # It does not come so far.

    def enable(self):
      nonlocal is_enabled
      is_enabled = True

  monkeypatch.setattr(runtime, 'gc', Collector())
  stalls._read_frames()
  has_ended.set()
  second.join(DEADLINE_SECS)
  assert is_enabled


def test_in_the_end_it_is_given_up_a_save_as_well(clock, make):
  watched, stop, _, _ = make(0.1, 0.4)
  watched.busy('the end')
  clock.now += 0.5
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
