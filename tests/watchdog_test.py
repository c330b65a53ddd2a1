"""watchdog: who fits, who is a twin, who is silent."""

import re
import socket
import threading

import pytest

from distmnist import cli, watchdog
from distmnist import cluster as cluster_lib
from tests import in_process
from tests.in_process import NoStop

SETTINGS = {
  'batch_size': 100,
  'model': 'cnn',
  'ps_hosts': 'a:1',
  'worker_hosts': 'b:1,c:1',
}


class Stop(NoStop):
  """Keeps what it is given up for."""

  def __init__(self):
    self.given_up = threading.Event()

  def give_up(self, error):
    self.error = error
    self.given_up.set()


@pytest.fixture
def make_watchdog(make_cluster):
  """Returns make(worker, say, warn_secs, fail_secs, **settings)."""
  made = []

  def make(
    worker=0,
    say=lambda line: None,
    warn_secs=60,
    fail_secs=60,
    **settings,
  ):
    cluster = make_cluster(1, 2)
    made.append(
      watchdog.Watchdog(
        cluster.worker(worker),
        cluster.servers[worker],
        SETTINGS | settings,
        warn_secs,
        fail_secs,
        Stop(),
        say,
      )
    )
    return made[-1]

  yield make
  for each in made:
    each.close()


@pytest.fixture
def ps_row(make_cluster):
  """Has ps 0 of the cluster of 1 ps and 2 workers checked in."""
  cluster = make_cluster(1, 2)
  hosts = {k: SETTINGS[k] for k in ('ps_hosts', 'worker_hosts')}
  ps = watchdog.Watchdog(
    cluster.ps(0), cluster.ps_servers[0], hosts, 60, 60, Stop(), print
  )
  ps.check_in()
  yield
  ps.close()


def test_tasks_with_the_same_settings_check_in(make_watchdog, ps_row):
  chief, worker = make_watchdog(0), make_watchdog(1)
  chief.check_in()
  worker.check_in()
  worker.check_in()  # After a recovery it is called again.
  assert worker.find_life('worker 0') == chief.life
  assert chief.find_life('worker 7') is None


@pytest.mark.slow
def test_a_worker_that_was_started_differently_is_refused(
  make_watchdog, ps_row
):
  make_watchdog(0).check_in()
  with pytest.raises(
    cli.RunError,
    match='^worker 0 at .* was started differently: --batch_size=100 there but '
    r'--batch_size=50 here, --seed=\(not given\) there but --seed=3 here; give '
    'all tasks the same$',
  ):
    make_watchdog(1, batch_size=50, seed=3).check_in()


@pytest.mark.slow
def test_hosts_that_a_ps_was_not_given_are_refused(make_watchdog, ps_row):
  with pytest.raises(
    cli.RunError,
    match='^ps 0 at .*--worker_hosts=b:1,c:1 there but --worker_hosts=b:1 here',
  ):
    make_watchdog(0, worker_hosts='b:1').check_in()


@pytest.mark.slow
def test_a_worker_finds_out_when_its_chief_comes_later(make_watchdog, ps_row):
  worker = make_watchdog(1, model='mlp')
  worker.check_in()
  chief = make_watchdog(0)
  chief.check_in()  # Who was wrong gives up, not the chief.
  stop = worker._stop
  assert stop.given_up.wait(60)
  assert isinstance(stop.error, cli.RunError)
  assert '--model=cnn there but --model=mlp here' in str(stop.error)
  assert not isinstance(stop.error, cli.LostError)


@pytest.mark.slow
def test_a_row_of_a_task_that_has_ended_holds_nobody_up(make_watchdog, ps_row):
  others = set(threading.enumerate())
  before = make_watchdog(0, batch_size=50)
  before.check_in()
  before.close()
  for thread in set(threading.enumerate()) - others:
    thread.join(60)
  make_watchdog(1).check_in()


@pytest.mark.slow
def test_a_second_process_of_one_task_is_refused(
  make_watchdog, ps_row, monkeypatch
):
  make_watchdog(1).check_in()
  monkeypatch.setattr(watchdog, 'find_place', lambda: 'elsewhere')
  with pytest.raises(
    cli.RunError,
    match=r'^worker 1 runs already, as process \d+ of host .*: give this one '
    'another --task_index, or stop that one$',
  ):
    make_watchdog(1).check_in()


def test_a_task_that_comes_back_on_its_host_need_not_wait(
  make_watchdog, ps_row
):
  make_watchdog(1).check_in()
  make_watchdog(1).check_in()


@pytest.mark.slow
def test_a_ps_that_does_not_check_in_is_named(make_watchdog, monkeypatch):
  worker = make_watchdog(0)
  object.__setattr__(worker._cluster, 'start_timeout_secs', 4)
  lines = []
  worker._say = lines.append
  with pytest.raises(
    cli.RunError, match=r'^no sign of ps 0 at 127.0.0.1:\d+ within 4 s'
  ):
    worker.check_in()
  assert re.match(r'waiting for a sign of ps 0 at ', lines[0])


@pytest.mark.slow
@pytest.mark.parametrize('is_silent', [False, True])
def test_a_stranger_on_the_port_of_a_ps_is_named(set_flags, is_silent):
  set_flags()
  stranger = socket.create_server(('127.0.0.1', 0))
  host = f'127.0.0.1:{stranger.getsockname()[1]}'

  accepted = []

  def answer():
    while True:
      try:
        connection, _ = stranger.accept()
      except OSError:
        return
      accepted.append(connection)
      if not is_silent:
        connection.sendall(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        connection.close()

  thread = threading.Thread(target=answer, daemon=True)
  thread.start()
  with in_process.hold_ports(1) as [port]:
    workers = (f'127.0.0.1:{port}',)
    wrong = cluster_lib.Cluster((host,), workers, 'worker', 0, 3.0)
    server = in_process.start_server(wrong)
  dog = watchdog.Watchdog(wrong, server, {}, 60, 60, Stop(), lambda line: None)
  with pytest.raises(cli.RunError, match=f'{host}.*that port$'):
    dog.check_in()
  # It wakes the thread, which may hold one connection more.
  stranger.shutdown(socket.SHUT_RDWR)
  thread.join(10)
  for each in (stranger, *accepted):
    each.close()


@pytest.mark.slow
def test_a_slow_step_is_said_to_be_slow(make_watchdog, ps_row, monkeypatch):
  # All are in this process: if it stands still for a while, none is to blame.
  monkeypatch.setattr(watchdog, '_SILENT_SECS', 60)
  lines = []
  said = threading.Event()

  def say(line):
    lines.append(line)
    said.set()

  dog = make_watchdog(0, say=say, warn_secs=0.3)
  dog.check_in()
  assert not said.wait(0.6)  # No step has begun.
  dog.stalls.step_begins()
  assert said.wait(60)
  dog.stalls.step_ends()
  assert re.fullmatch(
    r'no step for \d+ s: all tasks answer, so one of them works slowly',
    lines[0],
  )


def test_a_stall_is_given_up_in_the_end(make_watchdog, ps_row):
  dog = make_watchdog(0, warn_secs=0.2, fail_secs=0.5)
  dog.check_in()
  dog.stalls.step_begins()
  assert dog._stop.given_up.wait(60)
  error = dog._stop.error
  assert isinstance(error, cli.LostError)
  assert 'given up (--stall_fail_secs=0.5)' in str(error)


@pytest.mark.slow
@pytest.mark.parametrize('has_beaten', [True, False])
def test_a_task_that_beats_no_more_is_silent(make_watchdog, ps_row, has_beaten):
  chief, worker = make_watchdog(0), make_watchdog(1)
  chief.check_in()
  worker.check_in()
  assert chief.secs_silent('worker 7') is None
  chief.stalls.step_begins()  # Who waits for nobody does not look.

  def beats():
    secs = chief.secs_silent('worker 1')
    return secs is not None and secs < 3

  if has_beaten:
    wait_until(beats)
  worker.close()
  wait_until(lambda: (chief.secs_silent('worker 1') or 0) > 3)


def test_who_was_replaced_while_it_stood_still_ends_without_a_save(
  make_watchdog, ps_row
):
  old = make_watchdog(1)
  ended = threading.Event()

  def end_at_once(error):
    old._stop.error = error
    ended.set()
    old.close()  # The process would be over.

  old._stop.end_at_once = end_at_once
  old.check_in()
  new = make_watchdog(1)
  new._stop.end_at_once = lambda error: pytest.fail(str(error))
  new.check_in()
  assert ended.wait(60)
  assert isinstance(old._stop.error, cli.LostError)
  assert 'another process has become worker 1' in str(old._stop.error)
  assert old._stop.error.exit_code == 3
  new._beat_once()  # It has its row, and keeps it.


def test_a_beat_that_fails_is_not_the_last(make_watchdog, ps_row, monkeypatch):
  monkeypatch.setattr(watchdog, '_BEAT_SECS', 0.05)
  lines, said = [], threading.Event()
  dog = make_watchdog(0, say=lines.append)
  dog.check_in()
  beat, left = dog._board.beat, [RuntimeError('closed'), AttributeError('run')]

  def fail_twice(number):
    if left:
      raise left.pop()
    said.set()
    return beat(number)

  dog._board.beat = fail_twice
  assert said.wait(60)
  assert [line.partition(':')[0] for line in lines] == [
    'a beat failed, and the next is tried'
  ] * 2


def wait_until(is_true):
  for _ in range(1200):
    if is_true():
      return
    threading.Event().wait(0.05)
  raise TimeoutError
