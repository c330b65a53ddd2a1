"""benchmarks/scale.py: what it counts, and a small cluster that waits."""

import os
import subprocess

import pytest

from tests.support.runner import import_benchmark

scale = import_benchmark('scale')
usage = import_benchmark('usage')
waits = import_benchmark('scale_waits')


def test_what_was_used_is_told_per_worker_and_second():
  use = waits.Use(num_bytes=80_000, cpu_secs=0.4, all_cpu_secs=10, secs=20)
  assert use.format(num_workers=8) == ['500', '2.50', '0.50']


def test_memory_and_cpu_are_read_of_those_that_are_there():
  with subprocess.Popen(['true']) as gone:
    pass
  pids = [os.getpid(), gone.pid]
  assert waits.read_memory_mb(pids) == pytest.approx(
    waits.read_memory_mb(pids[:1]), rel=0.1
  )
  assert waits.read_memory_mb(pids) > 10
  times = os.times()
  assert usage.read_cpu_secs(pids) == pytest.approx(
    times.user + times.system, abs=0.5
  )


@pytest.mark.slow
def test_tasks_that_do_nothing_start_end_and_are_stopped():
  launcher, num_tasks, *secs = scale.measure_tasks('local', 20)
  assert (launcher, num_tasks) == ('local', '20')
  assert all(0 <= float(s) < 60 for s in secs)  # In tenths.


@pytest.mark.daily
@pytest.mark.slow
def test_what_ps_0_does_while_workers_wait(monkeypatch):
  before, amid, memory_mb, _ = waits.measure_waits('sync_sgd', 3, secs=2)
  assert memory_mb > 100
  # All workers beat, once a second: more than nothing, and not much. One that
  # has waited two seconds still asks ten times a second whether it may begin.
  for use, most in ((before, 10_000), (amid, 5000)):
    assert use.secs >= 2
    assert 50 < use.num_bytes / use.secs / 3 < most
    assert use.all_cpu_secs >= use.cpu_secs
