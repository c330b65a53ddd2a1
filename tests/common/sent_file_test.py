"""sent_file: a module that comes in an environment variable."""

import importlib.util
import py_compile
import traceback

import pytest

from distmnist.common import sent_file
from distmnist.common.names import SENT_FILE

SOURCE = b'x = "\xc3\xa4"\n\ndef fail():\n  return 1 / 0\n'


def load(path):
  loader = sent_file.Loader('sent', str(path), SOURCE)
  spec = importlib.util.spec_from_file_location('sent', path, loader=loader)
  module = importlib.util.module_from_spec(spec)
  loader.exec_module(module)
  return module


def test_what_was_packed_is_found_by_its_name(monkeypatch):
  assert sent_file.find('a/b.py') is None
  monkeypatch.setenv(SENT_FILE, sent_file.pack('a/b.py', SOURCE))
  assert sent_file.find('a/b.py') == SOURCE
  assert sent_file.find('b.py') is None


def test_it_is_imported_where_there_is_no_such_file(tmp_path):
  module = load(tmp_path / 'none.py')
  assert module.x == 'ä' and module.__file__ == str(tmp_path / 'none.py')
  with pytest.raises(ZeroDivisionError) as raised:
    module.fail()
  last = traceback.extract_tb(raised.value.__traceback__)[-1]
  assert (last.filename, last.lineno) == (str(tmp_path / 'none.py'), 4)


def test_another_file_that_is_there_does_not_count(tmp_path):
  path = tmp_path / 'other.py'
  path.write_text('x = 2')
  py_compile.compile(str(path))
  assert load(path).x == 'ä'
  assert path.read_text() == 'x = 2'
