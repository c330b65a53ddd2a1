"""examples/to_mlflow.py: each number of a run, once, and its flags."""

import importlib.util

import pytest

from distmnist.watching import metrics_file
from tests.support.paths import REPO


@pytest.fixture
def to_mlflow():
  path = REPO / 'examples' / 'to_mlflow.py'
  spec = importlib.util.spec_from_file_location('to_mlflow', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def logdir(tmp_path):
  (tmp_path / 'train.flags').write_text('--model=cnn\n--nohistory\n')

  def make(task):
    return metrics_file.Writer(str(tmp_path), task, 'a', host='h', pid=1)

  worker = make('worker 0')
  metrics = {'recall@10': 0.25, 'mae': None}
  worker.write('sample', state='training', step=7, loss=0.5, metrics=metrics)
  worker.write('evaluation', split='test', step=7, metrics={'accuracy': 0.75})
  make('ps 0').write('sample', state='serving', rss_bytes=5)
  return tmp_path


def test_all_numbers_of_all_tasks_are_read(to_mlflow, logdir):
  found = {
    name: (number, step)
    for name, number, _, step in to_mlflow.read_points(logdir)
  }
  assert found == {
    'worker_0/loss': (0.5, 7),
    'worker_0/recall_10': (0.25, 7),
    'test/accuracy': (0.75, 7),
    'ps_0/rss_bytes': (5, 0),
  }
  assert to_mlflow.read_flags(logdir) == {'model': 'cnn', 'nohistory': ''}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_the_real_library_has_them(to_mlflow, logdir, capsys):
  library = pytest.importorskip('mlflow')
  library.set_tracking_uri(f'sqlite:///{logdir}/mlflow.db')
  to_mlflow.main(logdir)
  name = capsys.readouterr().out.split()[-1]
  found = library.MlflowClient().get_run(name).data
  assert found.params['model'] == 'cnn'
  assert found.metrics['test/accuracy'] == 0.75
