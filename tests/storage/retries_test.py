"""retries: how often a store that is in trouble is asked."""

import itertools
import sys

import pytest

from distmnist.storage import paths, retries


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(retries, 'WAITS_SECS', (0.01, 0.02, 0.03))


@pytest.mark.parametrize('trouble', ['busy', 'reset'])
def test_a_store_that_has_troubles_is_asked_again_out_loud(
  store, trouble, logged
):
  answers = itertools.chain([trouble, trouble], itertools.repeat(None))
  store.trouble = lambda method, path: next(answers)
  url = f'{store.url}/again/{trouble}'
  paths.write(url, b'x')
  assert logged[0].startswith(f'{url}: ')
  assert logged[0].endswith('; trying again in 0.01 s')
  assert paths.read_bytes(url) == b'x'


@pytest.mark.slow
def test_one_that_has_them_for_good_is_an_error_with_a_reason(store):
  store.trouble = lambda method, path: 'busy'
  with pytest.raises(OSError) as caught:
    paths.write(f'{store.url}/never', b'x')
  assert caught.value.strerror == 'Reduce your request rate.'
  assert caught.value.filename == f'{store.url}/never'
  assert len(store.requests) == 4


def test_an_answer_that_took_long_is_reported(store, monkeypatch, logged):
  url = f'{store.url}/slow/x'
  paths.write(url, b'x')
  assert logged == []
  monkeypatch.setattr(retries, '_SLOW_SECS', 0.0)
  paths.write(url, b'x')
  [line] = logged
  assert line.startswith(f'{url}: ')


@pytest.mark.slow
def test_a_refusal_is_final(store):
  with pytest.raises(FileNotFoundError) as caught:
    paths.write('s3://nowhere/x', b'x')
  assert caught.value.strerror == 'The specified bucket does not exist'
  with pytest.raises(FileNotFoundError, match='bucket does not exist'):
    paths.list_names('s3://nowhere/x')
  with pytest.raises(FileNotFoundError) as caught:
    paths.read_bytes(f'{store.url}/nothing')
  assert caught.value.strerror == 'there is no such object'
  store.trouble = lambda method, path: 'denied'
  store.requests.clear()
  with pytest.raises(PermissionError) as caught:
    paths.write(f'{store.url}/x', b'x')
  assert caught.value.strerror == 'Access Denied'
  assert len(store.requests) == 1


def test_a_library_that_is_missing_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  with pytest.raises(OSError) as caught:
    paths.read_bytes('gs://bucket/x')
  assert caught.value.strerror == (
    "gs:// needs a library: pip install 'distmnist[gcs]'"
  )
