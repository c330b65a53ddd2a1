"""board: one row a task, for all to read."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist import board
from tests import in_process


@pytest.fixture
def open_board(make_cluster):
  """Returns open(worker, num_ps=1); closed at the end."""
  boards = []

  def open_board(worker, num_ps=1):
    cluster = make_cluster(num_ps, 2)
    boards.append(board.Board(cluster.worker(worker), cluster.servers[worker]))
    return boards[-1]

  yield open_board
  for each in boards:
    each.close()


@pytest.mark.parametrize('num_ps', [0, 1, 2])
def test_all_read_what_each_has_written_last(open_board, num_ps):
  first, second = open_board(0, num_ps), open_board(1, num_ps)
  assert second.read() == {}
  assert first.write({'beat': 1, 'text': 'größer'}) == {
    'worker 0': {'beat': 1, 'text': 'größer'}
  }
  first.write({'beat': 2})
  assert second.write({'beat': 7}) == {
    'worker 0': {'beat': 2},
    'worker 1': {'beat': 7},
  }


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
    lost = board.Board(away, server)
    for _ in range(2):
      with pytest.raises(tf.errors.UnavailableError):
        lost.read()
