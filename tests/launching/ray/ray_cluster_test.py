"""What Ray has; a real one is in tests/launchers/ray_test.py."""

import socket

import pytest

from distmnist.common import cli
from distmnist.launching.ray import ray_cluster
from tests.support.fake_ray import FakeRay


def test_no_ray_is_said_in_one_line(monkeypatch):
  monkeypatch.setattr(
    ray_cluster.importlib.util, 'find_spec', lambda name: None
  )
  with pytest.raises(cli.RunError, match=r'pip install distmnist\[ray\]'):
    ray_cluster.check_installed()


def test_a_ray_that_does_not_answer_is_named():
  with socket.socket() as closed, socket.create_server(('', 0)) as listens:
    closed.bind(('127.0.0.1', 0))
    dead = f'127.0.0.1:{closed.getsockname()[1]}'
    ray_cluster.check_answers(f'localhost:{listens.getsockname()[1]}')
    ray_cluster.check_answers('auto')
    ray_cluster.check_answers(None)
    for address in (dead, '127.0.0.1:99999'):
      with pytest.raises(cli.RunError, match=f'no Ray answers at {address}:'):
        ray_cluster.check_answers(address)


def test_the_ray_client_is_refused():
  with pytest.raises(cli.UsageError, match='--ray_address=ray://host:10001 is'):
    ray_cluster.check_answers('ray://host:10001')


@pytest.mark.parametrize(
  ('has', 'wanted', 'gpus'),
  [
    ({'CPU': 8.0}, None, 0),
    ({'GPU': 1.0}, None, 0),
    ({'GPU': 2.0}, None, 1),
    ({'GPU': 8.0}, 3, 3),
    ({'GPU': 8.0}, 0, 0),
  ],
)
def test_workers_get_gpus_if_there_is_one_for_each(
  monkeypatch, has, wanted, gpus
):
  ray = FakeRay()
  ray.has = has
  ray.put_in(monkeypatch)
  assert ray_cluster.choose_gpus(wanted, num_workers=2) == gpus


def test_what_ray_says_goes_to_a_log_as_long_as_there_is_one(tmp_path):
  log = tmp_path / 'ray.log'
  for line in ('one', 'two'):
    ray_cluster._keep(log, {'lines': [line]}, ignore_prefix=False)
  assert log.read_text() == 'one\ntwo\n'
  ray_cluster._keep(tmp_path / 'gone' / 'ray.log', {'lines': ['lost']})
  assert [path.name for path in tmp_path.iterdir()] == ['ray.log']
