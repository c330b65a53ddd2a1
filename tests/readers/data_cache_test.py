"""data_cache: files that are made once, whole or not at all, within a bound."""

import concurrent.futures
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time

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
    maker.wait(60)
  assert fetch('a') == b'content'
  assert len(list_files(folder)) == 1


def test_a_folder_may_be_removed_while_files_are_made(folder):
  def make_first(file):
    file.write(b'fir')
    file.flush()
    shutil.rmtree(folder)
    data_cache.fetch('b.csv', 'b', make_second).close()
    file.write(b'st')

  def make_second(file):
    file.write(b'second')
    file.flush()
    assert len(list_files(folder)) == 1

  with data_cache.fetch('a.csv', 'a', make_first) as first:
    assert first.read() == b'first'
  assert len(list_files(folder)) == 1
  assert fetch('a', b'anew') == b'anew'
  assert fetch('b') == b'second'


def test_who_waits_for_a_lock_that_is_removed_takes_the_new_one(folder):
  fetch('a')
  with (
    open(folder / 'lock', encoding='utf-8') as lock,
    concurrent.futures.ThreadPoolExecutor() as pool,
  ):
    fcntl.flock(lock, fcntl.LOCK_EX)
    there = list(folder.iterdir())
    fetched = pool.submit(fetch, 'b')
    for path in there:
      path.unlink()
    assert fetched.result(60) == b'content'
  assert len(list_files(folder)) == 1


def test_what_another_host_makes_stays(folder):
  fetch('a')
  for name, age in (('draft-host-1', 0), ('draft-host-2', 10**6)):
    (folder / name).write_bytes(b'half')
    os.utime(folder / name, (time.time() - age,) * 2)
  fetch('b')
  assert 'draft-host-1' in list_files(folder)
  assert len(list_files(folder)) == 3


def test_a_maker_that_writes_is_waited_for(folder, monkeypatch):
  fetch('a')
  before = os.stat(folder / 'lock').st_mtime_ns
  os.utime(folder / 'lock', (0, 0))
  touched = []

  def make(file):
    for _ in range(2):
      file.write(b'part')
      file.flush()
      touched.append(os.stat(folder / 'lock').st_mtime_ns >= before)
      os.utime(folder / 'lock', (0, 0))

  data_cache.fetch('a.csv', 'b', make).close()
  assert touched == [True, True]


def test_a_maker_that_hangs_is_named(folder, monkeypatch):
  monkeypatch.setattr(data_cache, '_HANGS_SECS', 0.1)
  fetch('a')
  with open(folder / 'lock', encoding='utf-8') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert fetch('a') == b'content'  # Nothing is to be made.
    with pytest.raises(cli.PassingError, match=f'{os.getpid()}.*--data_cache='):
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
  assert list_files(folder) == []
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


def test_the_default_is_not_a_folder_that_another_has_prepared(cache_folder):
  (cache_folder / 'own').mkdir(0o700)
  default = cache_folder / f'distmnist-data-{os.getuid()}'
  default.symlink_to('own')
  with pytest.raises(cli.RunError, match='^--data_cache=.* is a link'):
    fetch('a')


def test_a_link_is_not_written_through(folder, tmp_path):
  folder.mkdir()
  (tmp_path / 'precious').write_bytes(b'precious')
  (folder / 'lock').symlink_to(tmp_path / 'precious')
  with pytest.raises(cli.RunError, match='^--data_cache=.* a link'):
    fetch('a')
  assert (tmp_path / 'precious').read_bytes() == b'precious'


def test_a_filled_cache_may_lie_on_a_disk_that_is_read_only(
  folder, monkeypatch
):
  fetch('a')

  def fail(*_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(os, 'utime', fail)
  assert fetch('a') == b'content'


_FILLED = """
import sys
from absl import flags
from distmnist.readers import data_cache

flags.FLAGS(['x', *sys.argv[1:]])
for name, size in [('a', 600_000), ('b', 600_000), ('c', 900_000)]:
  make = lambda file: file.write(name.encode() * size)
  with data_cache.fetch('a.csv', name, make) as file:
    assert len(file.read()) == size
try:
  data_cache.fetch('d.csv', 'd', lambda file: file.write(bytes(3 << 20)))
except Exception as error:
  print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_on_a_full_disk_the_oldest_make_room(tmp_path):
  """On a disk of 2 MiB, of which two files take some."""
  cache = tmp_path / 'cache'
  cache.mkdir()
  mount = 'mount -t tmpfs -o size=2m,mode=755 none "$1" && exec "$2" -c "$3"'
  space = ['unshare', '--map-root-user', '--mount', 'sh', '-c']
  if subprocess.run(
    [*space, 'mount -t tmpfs none /mnt'], check=False
  ).returncode:
    pytest.skip('this user may mount nothing')
  out = subprocess.check_output(
    [*space, f'{mount} --data_cache="$1"', '', cache, sys.executable, _FILLED],
    text=True,
    timeout=200,
  )
  assert out.startswith('PassingError --data_cache=')
