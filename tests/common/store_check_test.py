"""store_check: an address is looked at before anything starts."""

import pytest

from distmnist.common import cli, store_check
from distmnist.storage import paths, retries


@pytest.mark.slow
def test_what_can_be_used_is_left_as_it_was(store, tmp_path):
  url = f'{store.url}/{tmp_path.name}'
  store_check.check('logdir', url, is_owned=True)
  assert paths.list_names(url) == []
  store.requests.clear()
  store_check.check('logdir', url, is_written=False)
  assert {method for method, _ in store.requests} == {'GET'}
  store_check.check('logdir', str(tmp_path / 'none'))
  store_check.check('logdir', None)


@pytest.mark.slow
def test_a_bucket_that_is_not_there_or_not_ours_is_one_line(store):
  with pytest.raises(cli.UsageError) as caught:
    store_check.check('logdir', 's3://nowhere/x')
  assert str(caught.value).startswith('--logdir=s3://nowhere/x ')
  assert 'list, read, write and delete' in str(caught.value)
  store.trouble = lambda method, path: 'denied'
  with pytest.raises(cli.UsageError) as caught:
    store_check.check('logdir', f'{store.url}/x', is_written=False)
  assert str(caught.value).startswith(f'--logdir={store.url}/x ')
  assert 'list and read' in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize('trouble', ['busy', 'reset'])
def test_a_store_that_is_away_is_not_the_user_s_mistake(
  store, monkeypatch, trouble
):
  monkeypatch.setattr(retries, 'WAITS_SECS', ())
  store.trouble = lambda method, path: trouble
  with pytest.raises(cli.PassingError, match='^--logdir=.* cannot be used: '):
    store_check.check('logdir', f'{store.url}/x')


def test_a_store_that_creates_what_is_there_is_told_to_its_owner(
  monkeypatch, tmp_path, logged
):
  url = f'memory://{tmp_path.name}'
  store_check.check('logdir', url, is_owned=True)
  assert logged == []

  def create(url, content):
    paths.write(url, content)
    return True

  monkeypatch.setattr(paths, 'create', create)
  store_check.check('logdir', url)
  assert logged == []
  store_check.check('logdir', url, is_owned=True)
  [line] = logged
  assert line.startswith(f'--logdir={url}: ')
  assert paths.list_names(url) == []
