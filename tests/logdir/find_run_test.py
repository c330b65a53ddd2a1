"""A run that is only looked at, by --logdir."""

import os

import pytest

from distmnist.common import cli
from distmnist.logdir import find_run
from distmnist.storage import paths
from distmnist.watching import metrics_file


def test_what_is_no_run_is_told(tmp_path, set_flags):
  set_flags()
  with pytest.raises(cli.UsageError, match='--logdir is missing'):
    find_run.from_flags()
  set_flags(f'--logdir={tmp_path}/none')
  with pytest.raises(cli.RunError, match='none: no such folder'):
    find_run.from_flags()
  set_flags(f'--logdir={tmp_path}')
  with pytest.raises(cli.RunError, match=r'no task has written a metrics\.js'):
    find_run.from_flags()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can drop its rights')
@pytest.mark.parametrize(
  'closed, named', [('', ''), ('metrics/ps_0', 'metrics/ps_0/metrics.jsonl')]
)
def test_a_run_that_may_not_be_read_is_told_as_such(
  tmp_path, set_flags, monkeypatch, closed, named
):
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  tmp_path.chmod(0o755)
  (tmp_path / closed).chmod(0o700)
  monkeypatch.chdir(tmp_path)  # What is above it may be closed, too.
  set_flags('--logdir=.')
  os.seteuid(65534)
  try:
    with pytest.raises(cli.RunError, match=f'{named} cannot be read .Permis'):
      find_run.from_flags()
  finally:
    os.seteuid(0)


@pytest.mark.slow
def test_an_address_is_looked_at_too(store, set_flags):
  set_flags('--logdir=s3://nowhere/run')
  with pytest.raises(cli.UsageError, match='bucket does not exist; give a buc'):
    find_run.from_flags()
  set_flags(f'--logdir={store.url}/none')
  with pytest.raises(cli.RunError, match='none: no such folder'):
    find_run.from_flags()


def test_of_a_run_in_a_store_is_said_where_to_look(store, set_flags):
  paths.write(f'{store.url}/run/train.flags', b'')
  set_flags(f'--logdir={store.url}/run')
  with pytest.raises(cli.RunError, match=r'metrics.jsonl there, .* --logs_dir'):
    find_run.from_flags()


def test_what_is_there_is_known_at_once(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  assert find_run.from_flags().find_left() == ['ps 0']
