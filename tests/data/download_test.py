"""Files that are there already or come from a mirror, on this machine."""

import gzip
import os
import pathlib
import socket
import stat
import subprocess
import sys
import textwrap
import threading

import pytest

from distmnist.common import cli
from distmnist.data import download
from tests.support.mirror import names_in, write
from tests.support.paths import REPO


@pytest.fixture
def data_dir(tmp_path):
  return tmp_path / 'data'


@pytest.fixture
def find(data_dir, md5s):
  """find(*mirrors): the paths of a small data set that is called mnist."""

  def find_files(*mirrors, folder=data_dir):
    return download.find_or_download('mnist', str(folder), mirrors, md5s)

  return find_files


@pytest.fixture
def dead_address():
  # Bound but not listening: connections are refused while it is held.
  with socket.socket() as held:
    held.bind(('127.0.0.1', 0))
    yield f'http://127.0.0.1:{held.getsockname()[1]}/'


def read_raw(files):
  """Returns dict from name to content, of what `find` has returned."""
  contents = {}
  for name, path in files.items():
    contents[name] = pathlib.Path(path).read_bytes()
    if path.endswith('.gz'):
      contents[name] = gzip.decompress(contents[name])
  return contents


def test_of_both_kinds_the_gzipped_one_is_taken(
  find, data_dir, raw_files, gz_files
):
  for ending in ('', '.gz'):
    write(data_dir, gz_files if ending else raw_files, ending)
    assert find() == {n: str(data_dir / f'{n}{ending}') for n in raw_files}


def test_the_folder_of_its_name_comes_first(find, data_dir, raw_files):
  write(data_dir, dict.fromkeys(raw_files, b'of another data set'))
  write(data_dir / 'mnist', raw_files)
  assert read_raw(find()) == raw_files


def test_a_tilde_is_the_home_folder(find, raw_files, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  write(tmp_path / 'images', raw_files)
  files = find(folder='~/images')
  assert files == {name: f'{tmp_path}/images/{name}' for name in raw_files}


def test_only_what_is_missing_is_downloaded(find, mirror, data_dir, raw_files):
  name = 't10k-labels-idx1-ubyte'
  write(data_dir / 'mnist', {name: raw_files[name]})
  assert read_raw(find(mirror.address)) == raw_files
  assert len([line for line in mirror.lines if line.startswith('GET')]) == 3
  assert not [line for line in mirror.lines if 't10k-labels' in line]


def test_a_flat_folder_that_lacks_a_file_is_not_mixed_in(
  find, mirror, data_dir, raw_files
):
  write(data_dir, dict.fromkeys([*raw_files][:3], b'of another data set'))
  assert read_raw(find(mirror.address)) == raw_files


def test_downloads_are_readable_by_other_users(find, mirror):
  paths = find(mirror.address).values()
  assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o644] * 4


def test_a_file_with_a_wrong_hash_is_not_left_behind(
  find, mirror, data_dir, md5s
):
  (mirror.folder / 't10k-images-idx3-ubyte.gz').write_bytes(b'a log-in page')
  with pytest.raises(cli.RunError) as caught:
    find(mirror.address)
  assert (
    f'{mirror.address}: t10k-images-idx3-ubyte.gz has a different md5 from '
    f'{md5s["t10k-images-idx3-ubyte"]}'
  ) in str(caught.value)
  assert names_in(data_dir / 'mnist') == [
    'train-images-idx3-ubyte.gz',
    'train-labels-idx1-ubyte.gz',
  ]


def test_what_one_mirror_has_wrong_comes_from_the_next(
  find, mirror, start_mirror, tmp_path, raw_files
):
  bad = tmp_path / 'bad'
  write(bad, dict.fromkeys(names_in(mirror.folder), b'a log-in page'))
  files = find(start_mirror(bad).address, mirror.address)
  assert read_raw(files) == raw_files


def test_no_mirror_is_one_line_that_says_what_to_do(
  find, start_mirror, dead_address, data_dir, tmp_path
):
  empty = tmp_path / 'empty'
  empty.mkdir()
  address = start_mirror(empty).address
  with pytest.raises(cli.RunError) as caught:
    find(dead_address, address)
  message = str(caught.value)
  for named in (
    *(dead_address, f'{address}: HTTP status 404', f'{data_dir}/mnist'),
    *('train-images-idx3-ubyte.gz', '--data_dir', '--dataset=synthetic'),
  ):
    assert named in message
  assert '\n' not in message
  assert names_in(data_dir / 'mnist') == []


def test_a_silent_network_is_given_up_in_time(find, monkeypatch):
  monkeypatch.setenv('no_proxy', '127.0.0.1')
  monkeypatch.setattr(download, '_ANSWER_SECS', 0.2)
  with (
    socket.create_server(('127.0.0.1', 0)) as silent,
    pytest.raises(cli.RunError, match=r'(no answer in|timeout=)'),
  ):
    find(f'http://127.0.0.1:{silent.getsockname()[1]}/')


def test_a_data_dir_that_cannot_be_made_is_one_line(find, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(
    cli.RunError, match=f'^cannot .* {tmp_path}/file/mnist: .*--data_dir.*$'
  ):
    find(folder=tmp_path / 'file')


def test_a_data_dir_that_cannot_be_written_is_one_line(find, data_dir):
  data_dir.mkdir()
  data_dir.chmod(0o555)
  if os.access(data_dir, os.W_OK):
    pytest.skip('this user may write everywhere')
  with pytest.raises(cli.RunError, match='mnist: Permission denied: make it'):
    find()


@pytest.mark.slow
def test_two_processes_may_download_at_once(mirror, data_dir, md5s):
  # Each request waits for the other process's: both are in the middle of it.
  together = threading.Barrier(2)
  mirror.before_get = lambda: together.wait(100)
  code = textwrap.dedent(f"""
    from distmnist.data import download
    download._ANSWER_SECS = download._STALL_SECS = 100.0
    download.find_or_download(
      'mnist', '{data_dir}', ['{mirror.address}'], {md5s}
    )
  """)
  both = [
    subprocess.Popen([sys.executable, '-c', code], cwd=REPO) for _ in range(2)
  ]
  assert [process.wait(200) for process in both] == [0, 0]
  assert names_in(data_dir / 'mnist') == names_in(mirror.folder)
  for path in mirror.folder.iterdir():
    found = data_dir / 'mnist' / path.name
    assert found.read_bytes() == path.read_bytes()
