"""The contract of a Store, held by a disk, a store in memory and S3.

The S3 is a server on this machine. With DISTMNIST_TEST_STORE, such as
hdfs://HOST:PORT/FOLDER or gs://BUCKET/FOLDER, the same is asked of that one.
"""

import os
import queue
import subprocess
import sys
import threading
import time

import pytest

from distmnist.storage import copies, paths

GIVEN = os.environ.get('DISTMNIST_TEST_STORE')


@pytest.fixture(
  params=[
    *('disk', 'memory'),
    pytest.param('s3', marks=pytest.mark.slow),
    *(['given'] if GIVEN else []),
  ]
)
def folder(request, tmp_path):
  """The path or the address of a folder that is not there."""
  name = f'{tmp_path.name}_{os.getpid()}'
  if request.param == 'disk':
    place = str(tmp_path / 'run')
  elif request.param == 'memory':
    place = f'memory://{name}'
  elif request.param == 's3':
    place = f'{request.getfixturevalue("store").url}/{name}'
  else:
    place = f'{GIVEN}/{name}'
  yield place
  paths.remove_folder(place)


def test_what_is_written_is_read_and_replaced(folder):
  paths.make_folders(folder)
  assert not paths.exists(f'{folder}/x')
  with pytest.raises(FileNotFoundError) as caught:
    paths.read_bytes(f'{folder}/x')
  assert caught.value.strerror
  paths.write(f'{folder}/x', 'é'.encode())
  assert paths.exists(f'{folder}/x')
  assert paths.read_text(f'{folder}/x') == 'é'
  paths.write(f'{folder}/x', b'two' * 1_000_000)
  assert paths.read_bytes(f'{folder}/x') == b'two' * 1_000_000
  assert paths.list_names(folder) == ['x']


def test_a_folder_is_listed_as_it_is(folder):
  assert not paths.exists(folder) and not paths.is_folder(folder)
  assert paths.list_names(folder) == paths.list_files(folder) == []
  paths.make_folders(f'{folder}/best')
  for name in ('x', 'best/y', 'best/z'):
    paths.write(f'{folder}/{name}', b'.')
  assert sorted(paths.list_names(folder)) == ['best', 'x']
  assert paths.list_files(folder) == ['x']
  assert paths.is_folder(folder) and not paths.is_folder(f'{folder}/x')
  # A / at the end of an address is no part of a name.
  assert sorted(paths.list_names(f'{folder}/')) == ['best', 'x']
  assert paths.exists(f'{folder}/best')


def test_of_many_that_create_a_file_at_once_one_succeeds(folder):
  paths.make_folders(folder)
  begin, answers = threading.Barrier(4), queue.SimpleQueue()

  def create(name):
    begin.wait()
    answers.put((paths.create(f'{folder}/x', name), name))

  threads = [
    threading.Thread(target=create, args=(f'from {i}'.encode(),))
    for i in range(4)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  found = sorted(answers.get() for _ in threads)
  assert [is_mine for is_mine, _ in found] == [False] * 3 + [True]
  assert paths.read_bytes(f'{folder}/x') == found[-1][1]
  assert not paths.create(f'{folder}/x', b'later')
  assert paths.list_names(folder) == ['x']


def test_a_file_and_a_folder_are_moved(folder):
  for name in ('best', 'aside'):
    paths.make_folders(f'{folder}/{name}')
  for name in ('x', 'best/y'):
    paths.write(f'{folder}/{name}', name.encode())
  paths.rename(f'{folder}/x', f'{folder}/aside/x')
  paths.rename(f'{folder}/best', f'{folder}/aside/best')
  assert paths.list_names(folder) == ['aside']
  assert paths.read_bytes(f'{folder}/aside/x') == b'x'
  assert paths.read_bytes(f'{folder}/aside/best/y') == b'best/y'


def test_what_is_removed_is_gone_and_may_be_so_already(folder):
  paths.make_folders(f'{folder}/best')
  for name in ('x', 'best/y'):
    paths.write(f'{folder}/{name}', b'.')
  for _ in range(2):
    paths.remove(f'{folder}/x')
    assert paths.list_names(folder) == ['best']
  for _ in range(2):
    paths.remove_folder(folder)
    assert not paths.is_folder(folder) and paths.list_names(folder) == []


def test_a_file_has_a_time_by_the_clock_of_its_store(folder):
  paths.make_folders(folder)
  assert paths.get_version(f'{folder}/x') is None
  paths.write(f'{folder}/x', b'.')
  written, version = paths.see_time(f'{folder}/x'), paths.get_version(folder)
  # S3 gives whole seconds.
  assert abs(written - time.time()) < 60
  assert -1 < paths.see_now(folder) - written < 60
  deadline = time.monotonic() + 20
  while (touched := paths.see_time(f'{folder}/x')) == written:
    assert time.monotonic() < deadline
    paths.touch(f'{folder}/x', b'.')
  assert touched > written
  assert paths.get_version(f'{folder}/x') != version
  assert paths.read_bytes(f'{folder}/x') == b'.'
  assert paths.list_names(folder) == ['x']


def test_a_file_is_brought_here_and_one_made_here_is_put_there(folder):
  paths.make_folders(folder)
  with pytest.raises(KeyError), copies.drafting(f'{folder}/x') as path:
    raise KeyError
  assert paths.list_names(folder) == []
  with copies.drafting(f'{folder}/x') as path, open(path, 'w') as file:
    file.write('whole')
  with open(copies.fetch_file(f'{folder}/x')) as file:
    assert file.read() == 'whole'


@pytest.mark.slow
def test_a_path_of_this_machine_needs_no_library(tmp_path):
  code = (
    'import sys; sys.modules["fsspec"] = None\n'
    'from distmnist.common import owner\n'
    'from distmnist.storage import paths\n'
    'folder = sys.argv[1]\n'
    'with owner.owned("--logdir", folder): pass\n'
    'paths.write(f"{folder}/x", b"x"); paths.rename(folder, f"{folder}_2")\n'
    'print(*paths.list_files(f"{folder}_2"))'
  )
  (tmp_path / 'run').mkdir()
  argv = [sys.executable, '-c', code, str(tmp_path / 'run')]
  found = subprocess.run(argv, capture_output=True, text=True, timeout=200)
  assert (found.stdout, found.stderr) == ('x\n', '')
