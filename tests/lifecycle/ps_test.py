"""A ps that is to stop, and the chief that has to save what it holds."""

import queue
import time
import types

import pytest

from distmnist.cluster import cluster, stop_request
from distmnist.common import cli, console
from distmnist.lifecycle import ps, shutdown
from distmnist.logdir import saving

PS = cluster.make_cluster(('x:1',), ('x:2',), 'ps', 0)


class Stop:
  """Stands for a stop_request.StopRequest that was requested a moment ago."""

  is_requested, error = True, None
  exit_code = 143
  end = stop_request.StopRequest.end
  note_unsaved = stop_request.StopRequest.note_unsaved
  find_unsaved = stop_request.StopRequest.find_unsaved

  def __init__(self, secs_left):
    self.secs_left = secs_left
    self.note_unsaved(None)


class Stalls:
  warn_secs = fail_secs = 60

  def busy(self, what, own_limit_secs=0.0):
    pass

  def idle(self):
    pass


@pytest.fixture
def stop_ps(monkeypatch, set_flags):
  """Returns stop_ps(grace, message, absent looks) -> (run, lines, asked).

  The life of a ps that is told to stop as it begins to serve is run().
  """
  set_flags()

  def stop_ps(secs_left, message=None, looks_until_gone=10**9):
    asked, lines, messages = [], [], queue.Queue()
    console.print_logs(lines.append)
    looks = iter(range(10**9))

    class Box:
      def __init__(self, *_):
        pass

      def __enter__(self):
        return self

      def __exit__(self, *_):
        pass

      def listen(self):
        return messages

      def send(self, sent, timeout_secs):
        asked.append((sent, timeout_secs))
        if message:
          messages.put(message)

    def find_gone(tasks):
      return tasks if next(looks) >= looks_until_gone else {}

    absences = types.SimpleNamespace(find_gone=find_gone)
    monkeypatch.setattr(ps.message_queue, 'MessageQueue', Box)
    monkeypatch.setattr(ps.probing, 'Absences', lambda: absences)
    task = types.SimpleNamespace(
      cluster=PS,
      server=None,
      stop=Stop(secs_left),
      stalls=Stalls(),
      watchdog=types.SimpleNamespace(check_in=lambda: None),
    )
    return lambda: ps.run_ps(task), lines, asked

  return stop_ps


def test_it_waits_for_the_save_a_second_less_than_its_grace(stop_ps):
  start = time.monotonic()
  run, _, asked = stop_ps(1.3)
  with pytest.raises(cli.NotSavedError, match='worker 0 has not saved within'):
    run()
  assert time.monotonic() - start >= 0.3
  assert asked == [({'ps': 0}, pytest.approx(0.3))]


@pytest.mark.parametrize('step', [400, None])
def test_it_leaves_once_the_chief_has_answered(stop_ps, step):
  run, lines, asked = stop_ps(600, {'saved': step})
  assert run() == 143
  assert asked == [({'ps': 0}, 2.0)]
  assert lines[-1] == (
    'worker 0 has saved step 400'
    if step
    else 'worker 0 has no --logdir to save to'
  )


@pytest.mark.parametrize('looks', [0, 3])
def test_a_chief_that_leaves_says_itself_what_is_saved(stop_ps, looks):
  run, _, asked = stop_ps(600, looks_until_gone=looks)
  assert run() == 143
  assert len(asked) == (looks > 0)


def test_a_last_save_that_fails_is_not_called_a_stop_in_order():
  stop = Stop(8.0)
  stop.note_unsaved('step 9 is not saved')
  with (
    pytest.raises(cli.NotSavedError, match='no room; step 9 is not saved'),
    shutdown.reporting_end_to_ps(PS, None, stop),
  ):
    raise saving.SaveError('no room')


def test_a_ps_that_no_worker_has_checked_in_with_says_so(monkeypatch):
  silent, lines = dict.fromkeys(['worker 0']), []
  console.print_logs(lines.append)
  monkeypatch.setattr(ps.probing, 'find_silent', lambda workers: {})
  clock = types.SimpleNamespace(now=100.0)
  clock.monotonic = lambda: clock.now
  monkeypatch.setattr(ps, 'time', clock)
  liveness = ps._WorkerLiveness(
    PS, types.SimpleNamespace(secs_silent=silent.get), Stalls
  )

  def look(after_secs):
    clock.now += after_secs
    assert not liveness.check({'worker 0': 'x:2'})

  for secs in 59, 2, 58, 2:
    look(secs)
  assert lines == [
    f'no worker has checked in for {secs} s: worker 0 at x:2'
    for secs in (61, 121)
  ]
  silent['worker 0'] = 0.1
  look(0)
  silent['worker 0'] = None  # The table cannot be read just now.
  for _ in range(3):
    look(60)
  assert len(lines) == 2


@pytest.mark.slow
def test_a_ps_without_workers_leaves(tasks, make_real_cluster):
  cluster = make_real_cluster(1, 1)
  ps = cluster.start('ps', 0, '--start_timeout_secs=2')
  assert tasks.wait(ps) == [1]
  assert f'no worker answers: worker 0 at {cluster.hosts["worker"][0]}' in (
    ps.output
  )
