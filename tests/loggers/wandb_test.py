"""With the real library, without a network."""

import fnmatch
import sys
import types

import pytest

from distmnist.common import cli
from distmnist.loggers import wandb


def test_without_the_library_it_says_how_to_get_it(monkeypatch):
  monkeypatch.setattr(wandb.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(cli.RunError, match=r'pip install distmnist\[wandb\]'):
    wandb.check()


def test_all_but_the_ps_have_the_global_step_as_x(monkeypatch, tmp_path):
  axes = {}

  class Run:
    def define_metric(self, name, step_metric=None):
      axes[name] = step_metric

  library = types.SimpleNamespace(init=lambda **_: Run(), Error=ValueError)
  monkeypatch.setitem(sys.modules, 'wandb', library)
  wandb.make(str(tmp_path), {})

  def find_axes(metric):
    return [axes[name] for name in axes if fnmatch.fnmatch(metric, name)]

  for run in ('worker_1', 'evaluator_0', 'validation', 'test'):
    assert find_axes(f'{run}/accuracy') == ['global_step']
  assert find_axes('ps_0/rss_bytes') == ['secs']


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_what_is_logged_is_in_the_run(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')
  wandb.check()
  logger = wandb.make(str(tmp_path), {'model': 'cnn'})
  logger.log('ps 0', 10.0, None, {'rss_bytes': 5})
  logger.log('worker 0', 11.0, 7, {'cost': 0.5})
  summary = dict(logger._run.summary)
  assert (summary['worker_0/cost'], summary['global_step']) == (0.5, 7)
  assert (summary['ps_0/rss_bytes'], summary['secs']) == (5, 1.0)
  assert dict(logger._run.config) == {'model': 'cnn'}
  logger.close(True)
  (path,) = tmp_path.glob('wandb/offline-run-*/*.wandb')
  assert path.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_without_a_key_it_says_how_to_do_without(tmp_path, monkeypatch):
  pytest.importorskip('wandb').teardown()  # It keeps what it has read.
  for name in ('WANDB_MODE', 'WANDB_API_KEY'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('NETRC', str(tmp_path / 'none'))
  with pytest.raises(cli.RunError, match=r'^W&B: .* Or set WANDB_MODE=offline'):
    wandb.make(str(tmp_path), {})
