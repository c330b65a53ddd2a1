"""With the real library, without a network."""

import pytest

from distmnist.common import cli
from distmnist.loggers import mlflow


def test_without_the_library_it_says_how_to_get_it(monkeypatch):
  monkeypatch.setattr(mlflow.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(cli.RunError, match=r'pip install distmnist\[mlflow\]'):
    mlflow.check()


def test_a_name_that_it_would_refuse_is_made_one_that_it_takes():
  assert mlflow._name('worker 0', 'recall@10 (é)') == 'worker_0/recall_10 _é_'
  assert mlflow._name('test', '/a//../b/') == 'test/_/a/_/_/b/_'
  assert mlflow._name('test', 'a/.b..') == 'test/a/.b..'


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_what_is_logged_is_in_the_store(tmp_path, monkeypatch):
  library = pytest.importorskip('mlflow')
  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  library.set_tracking_uri(f'file:{tmp_path}/mlruns')
  mlflow.check()
  logger = mlflow.make(f'{tmp_path}/run', {'model': 'cnn'})
  logger.log('ps 0', 10.0, None, {'rss_bytes': 5})
  logger.log('worker 0', 11.0, 7, {'cost': 0.5})
  logger.close(True)
  client = library.MlflowClient()
  found = client.get_run(logger._run.info.run_id)
  assert found.info.status == 'FINISHED'
  assert found.data.params == {'model': 'cnn'}
  assert found.data.metrics == {'ps_0/rss_bytes': 5, 'worker_0/cost': 0.5}
  (metric,) = client.get_metric_history(found.info.run_id, 'worker_0/cost')
  assert (metric.step, metric.timestamp) == (7, 11000)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
  library = pytest.importorskip('mlflow')
  monkeypatch.setenv('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '0')
  library.set_tracking_uri('http://127.0.0.1:9')
  with pytest.raises(cli.RunError, match='^MLflow at http://127.0.0.1:9: API'):
    mlflow.make(f'{tmp_path}/run', {})


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_a_database_takes_the_runs_with_what_the_extra_installs(tmp_path):
  library = pytest.importorskip('mlflow')
  library.set_tracking_uri(f'sqlite:///{tmp_path}/mlflow.db')
  logger = mlflow.make(f'{tmp_path}/run', {'model': 'cnn'})
  logger.close(True)
  found = library.MlflowClient().get_run(logger._run.info.run_id)
  assert found.data.params == {'model': 'cnn'}
