"""problem_file: what a launcher sends along."""

import random

import pytest

from distmnist.common import cli, sent_file
from distmnist.common.names import SENT_FILE
from distmnist.launching import problem_file


def test_a_file_is_sent_under_its_name(tmp_path, monkeypatch):
  path = tmp_path / 'mine.py'
  path.write_bytes(b'x = 1')
  [(name, value)] = problem_file.make_env(str(path))
  assert name == SENT_FILE
  monkeypatch.setenv(name, value)
  assert sent_file.find(str(path)) == b'x = 1'
  flags = problem_file.make_flags(str(path), '/problem')
  assert flags == ('--problem=/problem/mine.py',)


@pytest.mark.parametrize('named', [None, '', 'package.module'])
def test_nothing_else_is_sent(named):
  assert problem_file.read(named) is None
  assert problem_file.make_env(named) == ()
  assert problem_file.make_flags(named, '/problem') == ()


def test_a_file_that_cannot_be_sent_is_named(tmp_path):
  path = tmp_path / 'mine.py'
  with pytest.raises(cli.UsageError, match='cannot be read: No such file'):
    problem_file.read(str(path))
  path.write_bytes(random.Random(0).randbytes(90_000))
  with pytest.raises(cli.UsageError, match='has 90,000 bytes, too many to se'):
    problem_file.read(str(path))
