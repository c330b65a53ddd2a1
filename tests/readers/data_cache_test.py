"""data_cache: files that are made once, whole or not at all, within a bound."""

import concurrent.futures
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from distmnist.common import cli
from distmnist.readers import data_cache


def fetch(name, content=b'content', source='a.csv'):
  with data_cache.fetch(source, name, lambda file: file.write(content)) as file:
    return file.read()


def list_files(folder):
  return sorted(path.name for path in folder.iterdir() if path.name != 'lock')


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--data_cache={tmp_path}/cache', '--data_cache_gb=0.001')
  return tmp_path / 'cache'


def test_a_file_is_made_once(folder):
  assert fetch('a') == b'content'
  assert fetch('a', b'another') == b'content'
  assert fetch('b', b'another') == b'another'
  assert len(list_files(folder)) == 2


def test_those_who_come_meanwhile_get_the_same_file(folder):
  made = []

  def make(file):
    made.append(file)
    file.write(b'once')

  def fetch_it(_):
    with data_cache.fetch('a.csv', 'a', make) as file:
      return file.read()

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert [*pool.map(fetch_it, range(8))] == [b'once'] * 8
  assert len(made) == 1


def test_a_maker_that_fails_leaves_nothing(folder):
  def fail(file):
    file.write(b'half')
    raise ValueError('a.csv:3 is wrong')

  with pytest.raises(ValueError, match='^a.csv:3 is wrong'):
    data_cache.fetch('a.csv', 'a', fail)
  assert list_files(folder) == []
  assert fetch('a') == b'content'


_KILLED = """
import os, signal, sys
from absl import flags
from distmnist.readers import data_cache

def make(file):
  file.write(b'half')
  file.flush()
  print('half', flush=True)
  signal.pause()

flags.FLAGS(['x', *sys.argv[1:]])
data_cache.fetch('a.csv', 'a', make)
"""


@pytest.mark.slow
def test_a_maker_that_is_killed_leaves_nothing_half_made(folder):
  with subprocess.Popen(
    [sys.executable, '-c', _KILLED, f'--data_cache={folder}'],
    stdout=subprocess.PIPE,
  ) as maker:
    assert maker.stdout.readline() == b'half\n'
    maker.send_signal(signal.SIGKILL)
    maker.wait(10)
  assert fetch('a') == b'content'
  assert len(list_files(folder)) == 1


def test_a_maker_that_hangs_is_named(folder, monkeypatch):
  monkeypatch.setattr(data_cache, '_HANGS_SECS', 0.1)
  fetch('a')
  with open(folder / 'lock', encoding='utf-8') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert fetch('a') == b'content'  # Nothing is to be made.
    with pytest.raises(cli.RunError, match=f'{os.getpid()}.*--data_cache='):
      fetch('b')
  assert fetch('b') == b'content'


def test_the_file_that_was_opened_longest_ago_makes_room(folder):
  first, second, third = (bytes([i]) * 400_000 for i in range(3))
  fetch('a', first)
  fetch('b', second)
  kept = data_cache.fetch('a.csv', 'a', None)
  os.utime(kept.fileno(), ns=(0, os.fstat(kept.fileno()).st_mtime_ns + 10**9))
  with kept:
    fetch('c', third)
    assert len(list_files(folder)) == 2
    assert fetch('a', third) == first
    assert fetch('b', third) == third
    assert len(list_files(folder)) == 2
    assert kept.read() == first


def test_a_file_larger_than_the_bound_is_refused(folder):
  fetch('a')
  with pytest.raises(cli.RunError, match='^b.csv .*--data_cache_gb=0.001 '):
    fetch('b', bytes(1_000_001), 'b.csv')
  assert 'draft' not in list_files(folder)
  assert len(fetch('b', bytes(1_000_000))) == 1_000_000


def test_a_folder_that_cannot_be_written_is_named(set_flags):
  set_flags('--data_cache=/proc/none')
  with pytest.raises(cli.RunError, match='^--data_cache=/proc/none cannot be'):
    fetch('a')


def test_an_error_of_the_users_file_is_its_own(folder):
  def fail(file):
    raise FileNotFoundError(2, 'No such file', '/data/a.csv')

  with pytest.raises(FileNotFoundError, match='/data/a.csv'):
    data_cache.fetch('a.csv', 'a', fail)


def test_the_default_is_a_folder_of_this_user(cache_folder):
  fetch('a')
  [found] = cache_folder.iterdir()
  assert found.name == f'distmnist-data-{os.getuid()}'
  assert found.stat().st_mode & 0o777 == 0o700
