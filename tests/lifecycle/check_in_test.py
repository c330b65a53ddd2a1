"""check_in: which task fits the others, which is a duplicate."""

import re
import threading

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.lifecycle import check_in, heartbeats


class Beats:
  """Stands for heartbeats.Heartbeats: rows that others have written."""

  def __init__(self, alive=()):
    self.rows, self.alive = {}, alive

  def ask(self, ask, deadline):
    return ask()

  def read_row(self, name):
    return self.rows.get(name)

  def wait_for_beat(self, name, deadline):
    return name in self.alive


@pytest.mark.parametrize('is_alive', [True, False])
@pytest.mark.parametrize('compare', ['compare_with_chief', 'look_for_chief'])
def test_a_worker_is_compared_with_a_chief_that_came_later(compare, is_alive):
  cluster = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)
  beats = Beats(['worker 0'] if is_alive else [])
  own = check_in.CheckIn(cluster, beats, {'model': 'mlp'}, None)
  getattr(own, compare)()
  assert own.find_life('worker 0') is None
  beats.rows['worker 0'] = {'life': 'a'}, {'model': 'mlp'}
  getattr(own, compare)()
  assert own.find_life('worker 0') == 'a'
  beats.rows['worker 0'] = {'life': 'b'}, {'model': 'cnn'}
  if not is_alive:  # That one has ended, and another may follow.
    getattr(own, compare)()
    return
  with pytest.raises(cli.RunError, match='worker 0 at v:1 .*--model=cnn there'):
    getattr(own, compare)()


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
  chief.check_in()  # The one that is wrong gives up, not the chief.
  stop = worker._stalls._stop
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
  [beats] = [
    thread
    for thread in set(threading.enumerate()) - others
    if 'keep_beating' in thread.name
  ]
  beats.join(60)
  assert not beats.is_alive()
  make_watchdog(1).check_in()


@pytest.mark.slow
def test_a_second_process_of_one_task_is_refused(
  make_watchdog, ps_row, monkeypatch
):
  make_watchdog(1).check_in()
  monkeypatch.setattr(heartbeats, 'find_place', lambda: 'elsewhere')
  with pytest.raises(
    cli.RunError,
    match=r'^worker 1 is already running, as process \d+ of host .*: give this '
    'one another --task_index, or stop that one$',
  ):
    make_watchdog(1).check_in()


def test_a_task_that_comes_back_on_its_host_need_not_wait(
  make_watchdog, ps_row
):
  make_watchdog(1).check_in()
  make_watchdog(1).check_in()


@pytest.mark.slow
def test_a_ps_that_does_not_check_in_is_named(make_watchdog, logged):
  worker = make_watchdog(0)
  object.__setattr__(worker._cluster, 'start_timeout_secs', 2)
  with pytest.raises(
    cli.PassingError, match=r'^no sign of ps 0 at 127.0.0.1:\d+ within 2 s'
  ):
    worker.check_in()
  assert re.match(r'waiting for a sign of ps 0 at ', logged[0])
