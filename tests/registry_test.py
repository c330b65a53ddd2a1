"""registry: the files of a room by name, and a test for each of them."""

import pathlib
import re

import pytest

from distmnist import registry

ROOMS = ('datasets', 'launchers', 'models', 'strategies')
TESTS = pathlib.Path(__file__).parent


@pytest.mark.parametrize('room', ROOMS)
def test_names_are_the_files_of_the_room_sorted(room):
  files = (TESTS.parent / 'distmnist' / room).glob('[!_]*.py')
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
  module = registry.load('distmnist.models', 'softmax')
  assert module.__name__ == 'distmnist.models.softmax'


def test_an_unknown_name_is_answered_with_those_there_are():
  known = ', '.join(registry.names('distmnist.models'))
  assert 'cnn, ' in known
  message = f"no 'recnn' among the models: expected one of {known}"
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    registry.load('distmnist.models', 'recnn')


@pytest.mark.parametrize(
  'room, name',
  [(room, n) for room in ROOMS for n in registry.names(f'distmnist.{room}')],
)
def test_each_file_of_a_room_has_a_test_file_of_its_own(room, name):
  path = TESTS / room / f'{name}_test.py'
  assert path.is_file(), f'write {path}: {room}/{name}.py has no test'
