"""A request to stop: heeded until it is obeyed, unless it is of before."""

import os
import queue

import pytest

from distmnist.common import layout
from distmnist.watching import stop_file


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
  monkeypatch.setattr(stop_file, '_LOOK_SECS', 0.002)


@pytest.fixture
def watch(tmp_path):
  """Returns watch(answers) -> a Watch, and the queue of what it was asked.

  `answers` are what it says to one after the other, and True from then on.
  """

  def begin(*answers):
    asked, left = queue.Queue(), list(answers)

    def obey(who, is_taken):
      asked.put((who, is_taken))
      return left.pop(0) if left else True

    return stop_file.Watch(str(tmp_path), obey), asked

  return begin


def test_a_new_request_is_heeded_once_with_who_it_is(watch, tmp_path):
  stop_file.write(str(tmp_path))
  watching, asked = watch()
  with watching:
    with pytest.raises(queue.Empty):  # The old one.
      asked.get(timeout=0.05)
    stop_file.write(str(tmp_path))
    who, is_taken = asked.get(timeout=60)
    assert f'process {os.getpid()} of host' in who
    assert not is_taken
    with pytest.raises(queue.Empty):
      asked.get(timeout=0.05)


def test_one_that_is_not_obeyed_comes_again_until_a_launcher_takes_it(
  watch, tmp_path
):
  watching, asked = watch(*[False] * 1000)
  with watching:
    stop_file.write(str(tmp_path))
    assert [asked.get(timeout=60)[1] for _ in range(3)] == [False] * 3
    stop_file.confirm(str(tmp_path))
    while not asked.get(timeout=60)[1]:
      pass


def test_a_second_request_is_heeded_as_well(watch, tmp_path):
  watching, asked = watch()
  with watching:
    for _ in range(2):
      stop_file.write(str(tmp_path))
      assert asked.get(timeout=60)[1] is False


def test_a_file_that_says_nothing_is_no_request(watch, tmp_path):
  watching, asked = watch()
  with watching:
    layout.make_own_dir(str(tmp_path))
    (tmp_path / 'distmnist-files' / 'stop_request.json').write_text('{')
    with pytest.raises(queue.Empty):
      asked.get(timeout=0.05)
  assert stop_file.read(str(tmp_path / 'none')) == {}
