"""What all tests share: quiet TensorFlow, clusters, the real MNIST."""

import distmnist.runtime  # noqa: F401  Before anything imports TensorFlow.

# isort: split
import os
import pathlib

import pytest

from tests import in_process

_SHARED = pathlib.Path(__file__).parents[2] / 'shared' / 'data'


@pytest.fixture(scope='session')
def mnist_dir():
  """The folder with the real MNIST; skips where there is none."""
  given = os.environ.get('DISTMNIST_DATA_DIR')
  folder = pathlib.Path(given) if given else _SHARED
  if not (folder / 'mnist').is_dir():
    pytest.skip(
      'no MNIST: set DISTMNIST_DATA_DIR to the folder that has mnist/ in it'
    )
  return folder


@pytest.fixture(scope='session')
def _clusters():
  """TensorFlow cannot stop a server, so each shape is started once."""
  return {}


@pytest.fixture
def make_cluster(_clusters):
  """Returns make(num_ps, num_workers) -> in_process.InProcessCluster."""
  used = []

  def make(num_ps, num_workers):
    shape = num_ps, num_workers
    if shape not in _clusters:
      _clusters[shape] = in_process.InProcessCluster(*shape)
    used.append(_clusters[shape])
    return _clusters[shape]

  yield make
  for cluster in used:
    cluster.reset()
