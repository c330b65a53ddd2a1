"""heartbeat_table: one row and one beat a task, for all to read."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import heartbeat_table
from distmnist.cluster.heartbeat_table import Beat
from distmnist.watching import process_bytes
from tests.support import in_process


@pytest.fixture
def open_board(make_cluster):
  """Returns open(worker, num_ps=1); closed at the end."""
  tables = []

  def open_board(worker, num_ps=1):
    cluster = make_cluster(num_ps, 2)
    tables.append(
      heartbeat_table.HeartbeatTable(
        cluster.worker(worker), cluster.servers[worker]
      )
    )
    return tables[-1]

  yield open_board
  for each in tables:
    each.close()


@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [0, 2])
def test_all_read_what_each_has_written_last(open_board, num_ps):
  first, second = open_board(0, num_ps), open_board(1, num_ps)
  assert second.read('worker 0') is None
  first.write({'text': 'größer'}, {'seed': 1})
  first.write({'text': 'kleiner'}, {'seed': 1})
  row, settings = second.read('worker 0')
  assert row['text'] == 'kleiner'
  assert settings == {'seed': 1}


def measure(act, times=20):
  """Returns the bytes of an act; both ends of its sockets are in here."""
  counter = process_bytes.SocketBytes()
  act()  # It makes the session.
  counter.look()
  before, _ = counter.read() or (0, 0)
  for _ in range(times):
    act()
  counter.look()
  return ((counter.read() or (0, 0))[0] - before) / times


@pytest.mark.slow
def test_settings_are_read_once(open_board):
  first, second = open_board(0), open_board(1)
  first.write({'life': 1}, {'seed': 1})

  def read():
    assert second.read('worker 0')[1]['seed'] == 1

  few = measure(read)
  first.write({'life': 1}, {'seed': 1, 'hosts': 'a' * 10_000})
  assert measure(read) < few + 1000


@pytest.mark.slow
def test_a_beat_tells_of_the_one_before_and_all_are_read(open_board):
  first, second = open_board(0), open_board(1)
  assert first.beat(Beat(7, 1, 0)) == Beat(-1, -1, -1)
  assert first.beat(Beat(7, 2, 5)) == Beat(7, 1, 0)
  second.beat(Beat(2**62, 1, 0))
  assert second.read_beats() == {
    'worker 0': Beat(7, 2, 5),
    'worker 1': Beat(2**62, 1, 0),
  }


@pytest.mark.slow
def test_who_was_replaced_does_not_beat_over_who_came(open_board):
  old, new = open_board(1), open_board(1)
  old.beat(Beat(7, 1, 0))
  new.claim(Beat(8, 1, 0))
  assert old.beat(Beat(7, 2, 0)).life == 8
  assert new.beat(Beat(8, 2, 0)) == Beat(8, 1, 0)


@pytest.mark.slow
def test_a_beat_costs_the_same_however_many_there_are(open_board):
  one = open_board(1)

  def beat():
    one.beat(Beat(7, 1, 1))

  few = measure(beat)
  for index in range(2, 52):
    one._own_key = index
    one.write({'host': 'a' * 20}, {f'flag_{i}': 'x' * 30 for i in range(99)})
  many = measure(beat)
  if not few:
    pytest.skip('the bytes of sockets cannot be read here')
  assert many < few * 1.5 + 100
  # 50 workers, once a second.
  assert 50 * many < 100_000


@pytest.mark.slow
def test_a_session_that_is_closed_under_a_beat_is_made_anew(open_board):
  one = open_board(0)
  one.beat(Beat(7, 1, 0))
  is_over, errors = threading.Event(), []

  def beat():
    number = 1
    while not is_over.is_set():
      number += 1
      try:
        one.beat(Beat(7, number, 0))
      except tf.errors.OpError:
        pass
      except BaseException as error:
        errors.append(error)
        return

  threads = [threading.Thread(target=beat) for _ in range(3)]
  for thread in threads:
    thread.start()
  for _ in range(20):
    one.close()
  is_over.set()
  for thread in threads:
    thread.join(60)
  assert errors == []


@pytest.mark.slow
def test_a_board_whose_task_is_gone_is_an_error_and_can_be_tried_again(
  make_cluster,
):
  cluster = make_cluster(1, 2)
  member = cluster.worker(0)
  with in_process.hold_ports(1) as [port]:
    away = type(member)(
      (f'127.0.0.1:{port}',), member.worker_hosts, 'worker', 0
    )
    server = tf.train.Server(
      {'ps': list(away.ps_hosts), 'worker': ['127.0.0.1:0']}, 'worker', 0
    )
    lost = heartbeat_table.HeartbeatTable(away, server)
    for _ in range(2):
      with pytest.raises(tf.errors.UnavailableError):
        lost.read_beats()
