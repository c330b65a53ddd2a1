"""hdfs: a file system with pyarrow's traits becomes a store.

contract_test.py asks the same of a real one.
"""

import errno
import os
import shutil
import threading

import pytest
from fsspec.implementations import local as fsspec_local

from distmnist.storage import hdfs


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
    if os.path.isdir(self._at(new_path)):
      new_path = os.path.join(new_path, os.path.basename(path))
    elif os.path.isfile(self._at(path)) and os.path.exists(self._at(new_path)):
      self.rm_file(new_path)
    with self._lock:
      if os.path.exists(self._at(new_path)):
        raise OSError(errno.EIO, 'HDFS Rename failed')
      os.rename(self._at(path), self._at(new_path))

  def rm(self, path, recursive):
    shutil.rmtree(self._at(path))


@pytest.fixture
def below(tmp_path):
  return PyarrowsHdfs(tmp_path)


@pytest.fixture
def store(below):
  return hdfs.Hdfs(below)


def test_a_file_is_written_replaced_created_once_and_removed(store):
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


def test_of_two_that_create_a_file_at_once_one_succeeds(store, below):
  def be_faster(place):
    below.mv_hook = lambda place: None
    store.pipe_file('/run/x', b'fast', mode='create')

  below.mv_hook = be_faster
  with pytest.raises(FileExistsError):
    store.pipe_file('/run/x', b'slow', mode='create')
  assert store.cat_file('/run/x') == b'fast'
  assert store.ls('/run', detail=False) == ['/run/x']


def test_a_file_that_cannot_be_created_is_no_other_s(store, below):
  def fail(place):
    raise OSError(errno.ENOSPC, 'full')

  below.mv_hook = fail
  with pytest.raises(OSError, match='full'):
    store.pipe_file('/run/x', b'mine', mode='create')
  assert store.ls('/run') == []


def test_a_write_that_fails_leaves_the_old_file(store, below):
  store.pipe_file('/run/x', b'old')

  def fail(place):
    raise OSError(errno.ENOSPC, 'full')

  below.mv_hook = fail
  with pytest.raises(OSError, match='full'):
    store.pipe_file('/run/x', b'new')
  assert store.cat_file('/run/x') == b'old'
  assert store.ls('/run', detail=False) == ['/run/x']
