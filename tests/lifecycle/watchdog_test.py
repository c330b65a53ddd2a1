"""watchdog: it checks in once, and says what a task waits for."""

import contextlib
import re
import threading

import pytest

from distmnist.common import console
from distmnist.lifecycle import heartbeats, stalls
from tests.support import in_process


@pytest.mark.slow
def test_tasks_with_the_same_settings_check_in(make_watchdog, ps_row):
  chief, worker = make_watchdog(0), make_watchdog(1)
  chief.check_in()
  worker.check_in()
  worker.check_in()  # After a recovery it is called again.
  assert worker.find_life('worker 0') == chief.life
  assert chief.find_life('worker 7') is None


@pytest.mark.slow
def test_a_slow_step_is_said_to_be_slow(make_watchdog, ps_row, monkeypatch):
  # All are in this process: if it stands still for a while, none is to blame.
  monkeypatch.setattr(heartbeats, 'SILENT_SECS', 60)
  lines = []
  said = threading.Event()

  def say(line):
    lines.append(line)
    said.set()

  console.print_logs(say)
  dog = make_watchdog(0)
  dog.check_in()
  with contextlib.closing(
    stalls.Stalls(0.3, 60, in_process.KeepingStop()).start()
  ) as watched:
    watched.ask_about_others(dog)
    assert not said.wait(0.6)  # No step has begun.
    watched.step_begins()
    assert said.wait(60)
    watched.step_ends()
  assert re.fullmatch(
    r'no step for \d+ s: all tasks answer, and none says what holds it up; .*',
    lines[0],
  )
