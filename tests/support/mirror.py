"""A mirror on this machine, and small data sets to put on it."""

import functools
import gzip
import hashlib
import http.server
import struct
import threading

import numpy as np
import pytest

from distmnist.data import download

SPLITS = {'train': 7, 't10k': 3}  # Prefix of the files, number of images.


def pack_idx(values):
  header = struct.pack(f'>I{values.ndim}I', 0x800 | values.ndim, *values.shape)
  return header + values.tobytes()


def write(folder, files, ending=''):
  """Writes {name: bytes} into `folder`, with `ending` after each name."""
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    (folder / f'{name}{ending}').write_bytes(content)


def names_in(folder):
  return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def raw_files():
  """dict from file name to the bytes of a raw IDX file."""
  files = {}
  for prefix, n in SPLITS.items():
    images = np.arange(n * 784, dtype=np.uint8).reshape(n, 28, 28)
    files[f'{prefix}-images-idx3-ubyte'] = pack_idx(images)
    labels = np.arange(n, dtype=np.uint8)
    files[f'{prefix}-labels-idx1-ubyte'] = pack_idx(labels)
  return files


@pytest.fixture
def gz_files(raw_files):
  return {name: gzip.compress(raw, mtime=0) for name, raw in raw_files.items()}


@pytest.fixture
def md5s(gz_files):
  return {name: hashlib.md5(gz).hexdigest() for name, gz in gz_files.items()}


class _Handler(http.server.SimpleHTTPRequestHandler):
  def log_message(self, *args):
    self.server.lines.append(self.requestline)

  def do_GET(self):
    self.server.before_get()
    super().do_GET()


@pytest.fixture
def start_mirror(monkeypatch):
  """start_mirror(folder) -> server: .address to give, .lines of requests."""
  for name in ('no_proxy', 'NO_PROXY'):
    monkeypatch.setenv(name, '127.0.0.1')
  # This very process answers, and it may be kept from doing so.
  monkeypatch.setattr(download, '_ANSWER_SECS', 60.0)
  monkeypatch.setattr(download, '_STALL_SECS', 60.0)
  started = []

  def start(folder):
    server = http.server.ThreadingHTTPServer(
      ('127.0.0.1', 0), functools.partial(_Handler, directory=str(folder))
    )
    server.address = f'http://127.0.0.1:{server.server_port}/'
    server.lines = []
    server.before_get = lambda: None
    # By default it looks every half second whether it is to stop.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    started.append((server, thread))
    return server

  yield start
  for server, thread in started:
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def mirror(start_mirror, tmp_path, gz_files):
  """A mirror that has all the files, in .folder."""
  folder = tmp_path / 'mirror'
  folder.mkdir()
  for name, content in gz_files.items():
    (folder / f'{name}.gz').write_bytes(content)
  server = start_mirror(folder)
  server.folder = folder
  return server
