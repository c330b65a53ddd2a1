"""quiet_import: TensorFlow is imported without a word."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from distmnist.common import quiet_import
from tests.support.paths import PYTHONPATH


@pytest.mark.daily(but=['import distmnist.runtime'])
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


# In place of TensorFlow.
_NOISY = r"import os; os.write(2, b'0123\n')"


def run_beside(folder, source, program):
  """Runs a program that finds `source` as TensorFlow's."""
  (folder / 'tensorflow').mkdir()
  (folder / 'tensorflow' / '__init__.py').write_text(source)
  return subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'PYTHONPATH': f'{folder}:{PYTHONPATH}'},
    capture_output=True,
    text=True,
    timeout=120,
    cwd=folder,
  )


@pytest.mark.parametrize('ask', ['', 'find_spec("tensorflow")'])
def test_who_asks_whether_there_is_one_leaves_the_import_quiet(tmp_path, ask):
  done = run_beside(
    tmp_path,
    _NOISY,
    f"""
import distmnist, faulthandler, sys
from importlib.util import find_spec
numbers = [len(sys.meta_path)]
{ask}
numbers.append(len(sys.meta_path))
import tensorflow
numbers.append(len(sys.meta_path))
print(*numbers, faulthandler.is_enabled())
tensorflow.os.write(2, b'4567')
""",
  )
  assert done.returncode == 0, done.stderr
  before, asked, after, is_enabled = done.stdout.split()
  assert int(before) == int(asked) == int(after) + 1
  assert (is_enabled, done.stderr) == ('False', '4567')


def test_what_is_found_answers_as_its_own_loader_does(tmp_path):
  done = run_beside(
    tmp_path,
    _NOISY,
    """
import distmnist
from importlib.util import find_spec
loader = find_spec('tensorflow').loader
print(loader.get_filename('tensorflow'), loader.is_package('tensorflow'))
""",
  )
  path = tmp_path / 'tensorflow' / '__init__.py'
  assert done.stdout.split() == [str(path), 'True']


def test_what_an_import_that_fails_has_written_is_printed(tmp_path):
  done = run_beside(
    tmp_path, f'{_NOISY}; 1 / 0', 'import distmnist, tensorflow'
  )
  assert done.returncode == 1
  first, *_, last = done.stderr.splitlines()
  assert first == '0123' and last.startswith('ZeroDivisionError')


@pytest.mark.parametrize('is_enabled', [False, True])
def test_an_import_that_ends_the_process_leaves_its_place(tmp_path, is_enabled):
  # With one of its own, as under pytest: that one is kept.
  own = 'faulthandler.enable(os.dup(2))' if is_enabled else ''
  done = run_beside(
    tmp_path,
    f'{_NOISY}; os.abort()',
    f"""
import faulthandler, os, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{own}
import distmnist, tensorflow
""",
  )
  assert done.returncode == -signal.SIGABRT
  assert str(tmp_path / 'tensorflow' / '__init__.py') in done.stderr


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
