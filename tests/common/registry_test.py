"""registry: the files of a room by name."""

import re

import pytest

from distmnist.common import registry
from distmnist.common.names import MODELS
from tests.support.paths import REPO

ROOMS = ('datasets', 'launchers', 'models', 'strategies')


@pytest.mark.parametrize('room', ROOMS)
def test_names_are_the_files_of_the_room_sorted(room):
  files = (REPO / 'distmnist' / room).glob('[!_]*.py')
  found = registry.names(f'distmnist.{room}')
  assert found == sorted(path.stem for path in files)
  assert found


def test_names_imports_no_file_of_the_room(tmp_path, monkeypatch):
  room = tmp_path / 'some_room'
  room.mkdir()
  (room / '__init__.py').write_text('')
  (room / 'broken.py').write_text('raise AssertionError("imported")\n')
  monkeypatch.syspath_prepend(tmp_path)
  assert registry.names('some_room') == ['broken']
  with pytest.raises(AssertionError, match='imported'):
    registry.load_all('some_room')


def test_load_returns_the_module():
  module = registry.load(MODELS, 'softmax')
  assert module.__name__ == 'distmnist.models.softmax'


def test_an_unknown_name_is_answered_with_those_there_are():
  known = ', '.join(registry.names(MODELS))
  assert 'cnn, ' in known
  message = f"no 'recnn' among the models: expected one of {known}"
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    registry.load(MODELS, 'recnn')
