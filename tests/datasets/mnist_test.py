import hashlib
import os
import pathlib
import socket
import stat
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from distmnist import cli, download
from distmnist.datasets import mnist

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def data_dir(tmp_path):
  return tmp_path / 'data'


@pytest.fixture
def use(monkeypatch, md5s):
  """use(*addresses): makes them the mirrors, of the small data set."""

  def use_mirrors(*addresses):
    monkeypatch.setattr(mnist, 'MIRRORS', addresses)
    monkeypatch.setattr(mnist, 'MD5S', md5s)

  return use_mirrors


@pytest.fixture
def dead_address():
  # Bound but not listening: connections are refused while it is held.
  with socket.socket() as held:
    held.bind(('127.0.0.1', 0))
    yield f'http://127.0.0.1:{held.getsockname()[1]}/'


def write(folder, files, ending=''):
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    (folder / f'{name}{ending}').write_bytes(content)


def names_in(folder):
  return sorted(path.name for path in folder.iterdir())


def check_small_data_set(data_dir):
  for split, n in (('train', 7), ('test', 3)):
    images, labels = mnist.load(str(data_dir), split)
    assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
    assert labels.tolist() == list(range(n)) and labels.dtype == np.int32
    expected = np.arange(n * 784).astype(np.uint8)
    np.testing.assert_array_equal(images.ravel(), expected)


@pytest.mark.parametrize('split, n', [('train', 60000), ('test', 10000)])
def test_the_real_files_have_the_published_content(split, n):
  given = os.environ.get('DISTMNIST_DATA_DIR', ROOT.parent / 'shared' / 'data')
  if len(download._find(os.path.join(given, 'mnist'), mnist.MD5S)) < 4:
    pytest.skip('no MNIST: set DISTMNIST_DATA_DIR to a folder that has mnist/')
  images, labels = mnist.load(str(given), split)
  assert images.shape == (n, 28, 28, 1) and images.dtype == np.uint8
  assert labels.shape == (n,) and labels.dtype == np.int32
  header = bytes.fromhex(f'00000803 {n:08x} 0000001c 0000001c')
  expected = {
    'train': 'ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db',
    'test': '0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7',
  }
  digest = hashlib.sha256(header + images.tobytes()).hexdigest()
  assert digest == expected[split]


@pytest.mark.parametrize('place', ['mnist', '.'])
@pytest.mark.parametrize('ending', ['', '.gz'])
def test_files_put_by_hand_are_found(
  use, data_dir, raw_files, gz_files, place, ending
):
  use()
  write(data_dir / place, gz_files if ending else raw_files, ending)
  check_small_data_set(data_dir)


def test_missing_files_are_downloaded_once(use, mirror, data_dir, capfd):
  use(mirror.address)
  check_small_data_set(data_dir)
  gets = [line for line in mirror.lines if line.startswith('GET')]
  assert len(gets) == 4
  folder = data_dir / 'mnist'
  assert names_in(folder) == names_in(mirror.folder)
  assert capfd.readouterr().err.splitlines() == [
    f'downloading mnist (4 files) from {mirror.address} to {folder}'
  ]


def test_only_what_is_missing_is_downloaded(use, mirror, data_dir, raw_files):
  use(mirror.address)
  raw = raw_files.pop('t10k-labels-idx1-ubyte')
  write(data_dir / 'mnist', {'t10k-labels-idx1-ubyte': raw})
  check_small_data_set(data_dir)
  assert not [line for line in mirror.lines if 't10k-labels' in line]


def test_a_flat_folder_that_lacks_a_file_is_not_mixed_in(
  use, mirror, data_dir, raw_files
):
  use(mirror.address)
  raw_files.popitem()
  write(data_dir, dict.fromkeys(raw_files, b'of another data set'))
  check_small_data_set(data_dir)


def test_downloads_are_readable_by_other_users(use, mirror, data_dir):
  use(mirror.address)
  for path in mnist.prepare(str(data_dir)).values():
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644


def test_the_second_mirror_is_used_where_the_first_is_down(
  use, mirror, dead_address, data_dir
):
  use(dead_address, mirror.address)
  check_small_data_set(data_dir)


def test_a_file_with_a_wrong_hash_is_not_left_behind(
  use, mirror, data_dir, md5s
):
  use(mirror.address)
  (mirror.folder / 't10k-images-idx3-ubyte.gz').write_bytes(b'a log-in page')
  with pytest.raises(cli.RunError) as caught:
    mnist.prepare(str(data_dir))
  assert (
    f'{mirror.address}: t10k-images-idx3-ubyte.gz has another md5 than '
    f'{md5s["t10k-images-idx3-ubyte"]}'
  ) in str(caught.value)
  assert names_in(data_dir / 'mnist') == [
    'train-images-idx3-ubyte.gz',
    'train-labels-idx1-ubyte.gz',
  ]


def test_what_one_mirror_has_wrong_comes_from_the_next(
  use, mirror, start_mirror, data_dir, tmp_path
):
  bad = tmp_path / 'bad'
  write(bad, dict.fromkeys(names_in(mirror.folder), b'a log-in page'))
  use(start_mirror(bad).address, mirror.address)
  check_small_data_set(data_dir)


def test_no_mirror_is_one_line_that_says_what_to_do(
  use, start_mirror, dead_address, data_dir, tmp_path
):
  empty = tmp_path / 'empty'
  empty.mkdir()
  address = start_mirror(empty).address
  use(dead_address, address)
  with pytest.raises(cli.RunError) as caught:
    mnist.load(str(data_dir), 'train')
  assert str(caught.value) == (
    f'cannot download mnist from any of its mirrors ({dead_address}: '
    f'[Errno 111] Connection refused; {address}: HTTP status 404): '
    'put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, '
    't10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz into '
    f'{data_dir}/mnist by hand, point --data_dir at a folder that has them, '
    'or use --dataset=synthetic, which needs no network'
  )
  assert names_in(data_dir / 'mnist') == []


def test_a_silent_network_is_given_up_in_time(use, data_dir, monkeypatch):
  monkeypatch.setenv('no_proxy', '127.0.0.1')
  monkeypatch.setattr(download, '_ANSWER_SECS', 0.2)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    use(f'http://127.0.0.1:{silent.getsockname()[1]}/')
    with pytest.raises(cli.RunError, match=r'(no answer in|timeout=)'):
      mnist.prepare(str(data_dir))


def test_a_data_dir_that_cannot_be_made_is_one_line(use, tmp_path):
  use()
  (tmp_path / 'file').write_text('')
  with pytest.raises(cli.RunError) as caught:
    mnist.prepare(str(tmp_path / 'file'))
  assert str(caught.value) == (
    f'cannot write the files of mnist to {tmp_path}/file/mnist: Not a '
    'directory: make it a folder that you can write to, have its owner put '
    'train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, '
    't10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz there, or point '
    '--data_dir elsewhere'
  )


def test_a_data_dir_that_cannot_be_written_is_one_line(use, data_dir):
  use()
  data_dir.mkdir()
  data_dir.chmod(0o555)
  if os.access(data_dir, os.W_OK):
    pytest.skip('this user may write everywhere')
  with pytest.raises(cli.RunError, match='mnist: Permission denied: make it'):
    mnist.prepare(str(data_dir))


@pytest.mark.slow
def test_two_processes_may_download_at_once(mirror, data_dir, md5s):
  # Each request waits for the other process's: both are in the middle of it.
  together = threading.Barrier(2)
  mirror.before_get = lambda: together.wait(100)
  code = textwrap.dedent(f"""
    from distmnist import download
    from distmnist.datasets import mnist
    download._ANSWER_SECS = download._STALL_SECS = 100.0
    mnist.MIRRORS, mnist.MD5S = ['{mirror.address}'], {md5s}
    mnist.prepare('{data_dir}')
  """)
  both = [
    subprocess.Popen([sys.executable, '-c', code], cwd=ROOT) for _ in range(2)
  ]
  assert [process.wait(200) for process in both] == [0, 0]
  assert names_in(data_dir / 'mnist') == names_in(mirror.folder)
  for path in mirror.folder.iterdir():
    found = data_dir / 'mnist' / path.name
    assert found.read_bytes() == path.read_bytes()
