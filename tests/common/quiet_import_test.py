"""quiet_import: TensorFlow is imported without a word."""

import os
import subprocess
import sys
import threading

import pytest

from distmnist.common import quiet_import
from tests.support.paths import PYTHONPATH


@pytest.mark.slow
@pytest.mark.parametrize(
  'program',
  [
    'import distmnist, tensorflow.compat.v1 as tf; tf.Session()',
    'import distmnist.runtime',
  ],
)
def test_an_import_prints_nothing(program):
  more = '; import sys; print(sys.modules["tensorflow"].__spec__.loader)'
  done = subprocess.run(
    [sys.executable, '-c', program + more],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    capture_output=True,
    text=True,
    timeout=120,
  )
  lines = done.stderr.splitlines()
  # On a full machine.
  assert [x for x in lines if 'has been loading for' not in x] == []
  assert 'SourceFileLoader' in done.stdout  # Its own, for what asks it later.


def test_an_import_that_takes_long_says_so(monkeypatch):
  monkeypatch.setattr(quiet_import, '_LINE_SECS', 0.01)
  read_end, write_end = os.pipe()
  is_done = threading.Event()
  teller = threading.Thread(
    target=quiet_import._tell, args=(write_end, is_done)
  )
  teller.start()
  with open(read_end) as lines:
    assert lines.readline() == 'TensorFlow has been loading for 0 s\n'
    is_done.set()
    teller.join()
    os.close(write_end)
    lines.read()  # To its end: nobody else has the descriptor.
