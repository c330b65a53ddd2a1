"""A request to stop: heeded once, and not when it was there before."""

import os
import queue

import pytest

from distmnist.watching import stop_file


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
  monkeypatch.setattr(stop_file, '_LOOK_SECS', 0.002)


def test_a_new_request_is_heeded_once_with_who_it_is(tmp_path):
  requests = queue.Queue()
  stop_file.write(str(tmp_path))
  with stop_file.Watch(str(tmp_path), requests.put):
    with pytest.raises(queue.Empty):  # The old one.
      requests.get(timeout=0.05)
    stop_file.write(str(tmp_path))
    assert f'process {os.getpid()} of host' in requests.get(timeout=20)


def test_a_file_that_says_nothing_is_no_request(tmp_path):
  requests = queue.Queue()
  with stop_file.Watch(str(tmp_path), requests.put):
    (tmp_path / 'stop_request.json').write_text('{')
    with pytest.raises(queue.Empty):
      requests.get(timeout=0.05)
  assert stop_file.read(str(tmp_path / 'none')) == {}
