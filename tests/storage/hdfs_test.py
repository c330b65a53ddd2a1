"""hdfs: a file system with pyarrow's traits becomes a store.

With DISTMNIST_TEST_HDFS=hdfs://HOST:PORT/FOLDER the operations are tried on a
real one as well.
"""

import errno
import os
import threading

import pytest
from fsspec.implementations import local as fsspec_local

from distmnist.storage import hdfs, stores


class PyarrowsHdfs(fsspec_local.LocalFileSystem):
  """A folder that answers as pyarrow's HDFS does (seen with pyarrow 26)."""

  def __init__(self, folder):
    super().__init__(skip_instance_cache=True)
    self.folder = str(folder)
    self.is_up = True
    self._lock = threading.RLock()  # A NameNode answers one at a time.
    self.mv_hook = lambda place: None

  def _strip_protocol(self, path):  # Of an instance, as /x is in `folder`.
    return path

  def _at(self, path):
    return self.folder + path

  def info(self, path):
    with self._lock:
      if not self.is_up or not os.path.exists(self._at(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
      kind = 'directory' if os.path.isdir(self._at(path)) else 'file'
      mtime = os.path.getmtime(self._at(path))
    return {'name': path, 'type': kind, 'size': 0, 'mtime': mtime}

  def ls(self, path, detail=True):
    if not self.is_up:
      raise OSError(255, 'HDFS list directory failed')
    if os.path.isfile(self._at(path)):
      raise OSError(errno.EIO, 'is a file')
    with self._lock:
      names = os.listdir(self._at(path))
      return [self.info(os.path.join(path, name)) for name in names]

  def cat_file(self, path):
    with open(self._at(path), 'rb') as file:
      return file.read()

  def pipe_file(self, path, content):
    with self._lock, open(self._at(path), 'wb') as file:
      file.write(content)

  def makedirs(self, path, exist_ok=False):
    os.makedirs(self._at(path), exist_ok=exist_ok)

  def rm_file(self, path):
    try:
      with self._lock:
        os.remove(self._at(path))
    except OSError as error:
      raise OSError(errno.EIO, 'HDFS delete failed') from error

  def mv(self, path, new_path):
    self.mv_hook(new_path)
    with self._lock:
      if os.path.exists(self._at(new_path)):
        raise OSError(errno.EIO, 'HDFS Rename failed')
      os.rename(self._at(path), self._at(new_path))


@pytest.fixture
def below(tmp_path):
  return PyarrowsHdfs(tmp_path)


@pytest.fixture
def store(below, monkeypatch):
  monkeypatch.setattr(hdfs, '_LOOK_SECS', 0.01)
  return hdfs.Hdfs(below)


def test_a_file_is_written_replaced_created_once_and_removed(store):
  assert not store._is_there('/run/x')
  store.pipe_file('/run/x', b'one')
  store.pipe_file('/run/x', b'two')
  assert store.cat_file('/run/x') == b'two'
  with pytest.raises(FileExistsError):
    store.pipe_file('/run/x', b'three', mode='create')
  assert store.ls('/run', detail=False) == ['/run/x']
  assert store.ls('/run/x', detail=False) == ['/run/x']
  store.mv('/run/x', '/aside/y')
  store.rm_file('/aside/y')
  assert store.ls('/run') == store.ls('/aside') == []


@pytest.mark.parametrize(
  'ask',
  [
    lambda store: store.cat_file('/run/x'),
    lambda store: store.get_file('/run/x', '/never'),
    lambda store: store.rm_file('/run/x'),
    lambda store: store.rm('/run', recursive=True),
    lambda store: store.mv('/run/x', '/run/y'),
    lambda store: store.modified('/run/x'),
    lambda store: store.ls('/run'),
  ],
)
def test_not_there_is_told_from_no_answer(store, below, ask):
  with pytest.raises(FileNotFoundError):
    ask(store)
  below.is_up = False
  with pytest.raises(OSError, match='list directory failed') as caught:
    ask(store)
  assert not isinstance(caught.value, FileNotFoundError)


def test_a_file_that_is_replaced_is_never_seen_missing(store, below):
  store.pipe_file('/run/x', b'old')
  seen, is_gap, goes_on = [], threading.Event(), threading.Event()

  def wait(place):
    if place == '/run/x':
      is_gap.set()
      assert goes_on.wait(10)

  below.mv_hook = wait
  writer = threading.Thread(target=store.pipe_file, args=('/run/x', b'new'))
  writer.start()
  assert is_gap.wait(10)
  assert not os.path.exists(f'{below.folder}/run/x')
  reader = threading.Thread(
    target=lambda: seen.append(store.cat_file('/run/x'))
  )
  reader.start()
  goes_on.set()
  for thread in (writer, reader):
    thread.join(10)
  assert seen == [b'new']


def test_what_a_killed_process_was_replacing_gets_its_name(store, below):
  below.makedirs('/run')
  below.pipe_file('/run/train.flags.0123abcd.replaces', b'new')
  below.pipe_file('/run/other.0123abcd.new', b'half')
  assert store.cat_file('/run/train.flags') == b'new'
  names = {'/run/train.flags', '/run/other.0123abcd.new'}
  assert set(store.ls('/run', detail=False)) == names


def test_a_write_that_fails_leaves_the_old_file(store, below):
  store.pipe_file('/run/x', b'old')

  def fail(place):
    raise OSError(errno.ENOSPC, 'full')

  below.mv_hook = fail
  with pytest.raises(OSError, match='full'):
    store.pipe_file('/run/x', b'new')
  assert store.cat_file('/run/x') == b'old'
  assert store.ls('/run', detail=False) == ['/run/x']


@pytest.mark.skipif(
  'DISTMNIST_TEST_HDFS' not in os.environ,
  reason='DISTMNIST_TEST_HDFS names no HDFS to try',
)
def test_a_real_one_does_what_the_stand_in_does(tmp_path, capfd):
  url = f'{os.environ["DISTMNIST_TEST_HDFS"]}/hdfs_test_{os.getpid()}'
  try:
    assert stores.list_entries(url) == []
    assert not stores.is_exclusive(url)
    assert stores.create(f'{url}/x', b'one')
    assert not stores.create(f'{url}/x', b'two')
    stores.write(f'{url}/x', b'three')
    (tmp_path / 'y').write_bytes(b'4' * 3_000_000)
    stores.upload(str(tmp_path / 'y'), f'{url}/best/y')
    names = [entry['name'] for entry in stores.list_entries(url)]
    assert [os.path.basename(name) for name in names] == ['best', 'x']
    assert stores.list_entries(f'{url}/x') == []
    stores.move(f'{url}/best', f'{url}/aside/best')
    stores.download(f'{url}/aside/best/y', str(tmp_path / 'z'))
    assert (tmp_path / 'z').stat().st_size == 3_000_000
    assert stores.read(f'{url}/x') == b'three'
    assert stores.modified(f'{url}/x') > 1e9
    for is_folder in (False, False):
      stores.remove(f'{url}/x', is_folder)
    assert not stores.exists(f'{url}/x') and stores.exists(f'{url}/aside')
    with pytest.raises(FileNotFoundError):
      stores.read(f'{url}/x')
  finally:
    for _ in range(2):
      stores.remove(url, is_folder=True)
  assert 'Exception' not in capfd.readouterr().err
