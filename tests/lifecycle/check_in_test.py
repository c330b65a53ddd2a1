"""check_in: which task fits the others, which is a duplicate."""

import dataclasses
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, console
from distmnist.lifecycle import check_in

HOSTS = {'ps_hosts': 'a:1', 'worker_hosts': 'b:1,c:1'}
SETTINGS = {'batch_size': 100, 'model': 'cnn', **HOSTS}


class Beats:
  """Stands for heartbeats.Heartbeats: rows that others have written."""

  place = 'here'

  def __init__(self, *alive):
    self.rows, self.alive = {'ps 0': ({'life': 'p'}, HOSTS)}, alive
    self.num_claims = 0

  def ask(self, ask, deadline):
    return ask()

  def claim(self):
    self.num_claims += 1

  def read_row(self, name):
    return self.rows.get(name)

  def wait_for_beat(self, name, deadline):
    return name in self.alive


def make(beats, worker, stop=None, **settings):
  cluster = cluster_lib.make_cluster(('a:1',), ('b:1', 'c:1'), 'worker', worker)
  cluster = dataclasses.replace(cluster, start_timeout_secs=2.0)
  return check_in.CheckIn(cluster, beats, SETTINGS | settings, stop)


def test_a_worker_that_was_started_differently_is_refused():
  beats = Beats('worker 0')
  beats.rows['worker 0'] = {'life': 'v'}, SETTINGS
  with pytest.raises(
    cli.RunError,
    match='^worker 0 at b:1 was started differently: --batch_size=100 there '
    r'but --batch_size=50 here, --seed=\(not given\) there but --seed=3 here; '
    'give all tasks the same$',
  ):
    make(beats, 1, batch_size=50, seed=3).run()
  # A chief compares itself with no worker.
  del beats.rows['worker 0']
  beats.rows['worker 1'] = {'life': 'w'}, SETTINGS
  make(beats, 0, batch_size=50).run()


def test_hosts_that_a_ps_was_not_given_are_refused():
  with pytest.raises(
    cli.RunError,
    match='^ps 0 at .*--worker_hosts=b:1,c:1 there but --worker_hosts=b:1 here',
  ):
    make(Beats('ps 0'), 0, worker_hosts='b:1').run()


def test_a_second_process_of_one_task_is_refused():
  beats = Beats('worker 1')
  row = {'life': 'w', 'place': 'elsewhere', 'pid': 7, 'host': 'h'}
  beats.rows['worker 1'] = row, SETTINGS
  with pytest.raises(
    cli.RunError,
    match='^worker 1 is already running, as process 7 of host h: give this one '
    'another --task_index, or stop that one$',
  ):
    make(beats, 1).run()
  assert not beats.num_claims
  row['place'] = beats.place  # It would hold the port: it has ended.
  make(beats, 1).run()
  row['place'], beats.alive = 'elsewhere', ()
  make(beats, 1).run()
  assert beats.num_claims == 2


def test_a_row_of_a_task_that_has_ended_holds_nobody_up():
  beats = Beats()
  beats.rows['worker 0'] = {'life': 'v'}, SETTINGS | {'batch_size': 50}
  make(beats, 1).run()


def test_a_ps_that_does_not_check_in_is_named(logged, monkeypatch):
  clock = types.SimpleNamespace(now=0.0)
  clock.monotonic = lambda: clock.now
  monkeypatch.setattr(console, 'time', clock)

  class Stop:
    def wait(self, secs):
      clock.now += secs

  beats = Beats()
  del beats.rows['ps 0']
  with pytest.raises(
    cli.PassingError, match=r'^no sign of ps 0 at a:1 within 2 s'
  ):
    make(beats, 1, Stop()).run()
  assert logged[0].startswith('waiting for a sign of ps 0 at a:1')


@pytest.mark.parametrize('is_alive', [True, False])
@pytest.mark.parametrize('compare', ['compare_with_chief', 'look_for_chief'])
def test_a_worker_is_compared_with_a_chief_that_came_later(compare, is_alive):
  beats = Beats(*['worker 0'] * is_alive)
  own = make(beats, 1, model='mlp')
  getattr(own, compare)()
  assert own.find_life('worker 0') is None
  beats.rows['worker 0'] = {'life': 'a'}, SETTINGS | {'model': 'mlp'}
  getattr(own, compare)()
  assert own.find_life('worker 0') == 'a'
  beats.rows['worker 0'] = {'life': 'b'}, SETTINGS
  if not is_alive:  # That one has ended, and another may follow.
    getattr(own, compare)()
    return
  with pytest.raises(cli.RunError, match='worker 0 at b:1 .*--model=cnn there'):
    getattr(own, compare)()


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
def test_a_task_that_comes_back_on_its_host_need_not_wait(
  make_watchdog, ps_row
):
  make_watchdog(1).check_in()
  make_watchdog(1).check_in()
