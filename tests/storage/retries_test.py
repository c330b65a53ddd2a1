"""retries: how often a store that is in trouble is asked."""

import itertools
import sys

import pytest

from distmnist.storage import retries, stores


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
  stores.write(url, b'x')
  assert logged[0].startswith(f'{url}: ')
  assert logged[0].endswith('; trying again in 0.01 s')
  assert stores.read(url) == b'x'


@pytest.mark.slow
def test_one_that_has_them_for_good_is_an_error_with_a_reason(store):
  store.trouble = lambda method, path: 'busy'
  with pytest.raises(OSError) as caught:
    stores.write(f'{store.url}/never', b'x')
  assert caught.value.strerror == 'Reduce your request rate.'
  assert caught.value.filename == f'{store.url}/never'
  assert len(store.requests) == 4


def test_how_long_an_answer_took_is_noted(store, monkeypatch):
  noted = []
  monkeypatch.setattr(retries._times, 'note', lambda *what: noted.append(what))
  url = f'{store.url}/noted/x'
  stores.write(url, b'x')
  ((noted_url, secs),) = noted
  assert noted_url == url and 0 < secs < 60


def test_a_refusal_is_final(store):
  with pytest.raises(FileNotFoundError) as caught:
    stores.write('s3://nowhere/x', b'x')
  assert caught.value.strerror == 'The specified bucket does not exist'
  with pytest.raises(FileNotFoundError, match='bucket does not exist'):
    stores.list_entries('s3://nowhere/x')
  with pytest.raises(FileNotFoundError) as caught:
    stores.read(f'{store.url}/nothing')
  assert caught.value.strerror == 'there is no such object'
  store.trouble = lambda method, path: 'denied'
  store.requests.clear()
  with pytest.raises(PermissionError) as caught:
    stores.write(f'{store.url}/x', b'x')
  assert caught.value.strerror == 'Access Denied'
  assert len(store.requests) == 1


def test_a_library_that_is_missing_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  with pytest.raises(OSError) as caught:
    stores.read('gs://bucket/x')
  assert caught.value.strerror == (
    "gs:// needs a library: pip install 'distmnist[gcs]'"
  )


def test_slow_answers_are_added_up_and_said_now_and_then(logged):
  now = 100.0
  times = retries.AnswerTimes(lambda: now)
  for _ in range(20):
    times.note('s3://b/quick', 0.2)
  for _ in range(4):
    times.note('s3://b/x', 1.0)
  assert logged == []
  times.note('s3://b/y', 1.25)
  assert logged == [
    's3://b/y: the store has answered after 1.2 s; 5 slow answers have taken '
    '5 s so far'
  ]
  for _ in range(20):
    times.note('s3://b/x', 1.0)
  assert len(logged) == 1
  now += 31
  times.note('s3://b/z', 2.0)
  assert logged[1:] == [
    's3://b/z: the store has answered after 2.0 s; 26 slow answers have taken '
    '27 s so far'
  ]
  now += 31
  times.note('s3://b/z', 2.0)
  assert len(logged) == 2
