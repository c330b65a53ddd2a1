"""A run that is only looked at, by --logdir."""

import pytest

from distmnist.common import cli
from distmnist.logdir import find_run
from distmnist.storage import stores
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


def test_an_address_is_looked_at_too(store, set_flags):
  set_flags('--logdir=s3://nowhere/run')
  with pytest.raises(cli.UsageError, match='bucket does not exist; give a buc'):
    find_run.from_flags()
  set_flags(f'--logdir={store.url}/none')
  with pytest.raises(cli.RunError, match='none: no such folder'):
    find_run.from_flags()


def test_of_a_run_in_a_store_is_said_where_to_look(store, set_flags):
  stores.write(f'{store.url}/run/train.flags', b'')
  set_flags(f'--logdir={store.url}/run')
  with pytest.raises(cli.RunError, match=r'metrics.jsonl there, .* --logs_dir'):
    find_run.from_flags()


def test_what_is_there_is_known_at_once(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  assert find_run.from_flags().find_left() == ['ps 0']
