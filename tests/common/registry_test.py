"""registry: the files of a room by name."""

import re

import pytest
from absl import flags

from distmnist.common import cli, command_line, registry
from distmnist.common.names import MODELS
from tests.support.paths import REPO

_METADATA = """Metadata-Version: 2.1
Name: {}
Version: 1.0
"""
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


@pytest.fixture
def install(tmp_path, monkeypatch):
  """Returns install(package, room, name, module): another's entry point."""

  def write(package, room, name, module):
    info = tmp_path / f'{package}-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(_METADATA.format(package))
    (info / 'entry_points.txt').write_text(f'[{room}]\n{name} = {module}\n')
    monkeypatch.syspath_prepend(tmp_path)
    registry._find_all.cache_clear()

  yield write
  registry._find_all.cache_clear()


def test_another_package_adds_a_name(install, tmp_path):
  (tmp_path / 'their_net.py').write_text('SIZE = 3\n')
  install('theirs', MODELS, 'theirs', 'their_net')
  assert registry.find(MODELS)['theirs'] == 'their_net'
  assert registry.names(MODELS) == sorted(registry.names(MODELS))
  assert registry.load(MODELS, 'theirs').SIZE == 3


@pytest.mark.parametrize(
  ('code', 'reason'),
  [
    ('\nimport nothing_like_it\n', r'net.py:2: ModuleNotFoundError: No module'),
    ('def make(:\n', r'net.py:1: SyntaxError: '),
    ('raise SystemExit(7)\n', r'net.py:1: SystemExit: 7'),
    (
      None,
      r"imported: ModuleNotFoundError: No module named 'their_broken_net'",
    ),
  ],
)
def test_a_module_of_another_package_that_fails_is_named_when_flags_are_parsed(
  install, tmp_path, monkeypatch, code, reason
):
  if code:
    (tmp_path / 'their_broken_net.py').write_text(code)
  install('theirs', MODELS, 'theirs', 'their_broken_net')
  monkeypatch.setattr(command_line, 'import_errors', [])
  registry.load_all(MODELS)
  with pytest.raises(cli.UsageError, match=reason) as caught:
    command_line.parse(flags.FLAGS, ['train'])
  assert str(caught.value).startswith('the module their_broken_net, which an')
  assert '\n' not in str(caught.value)
  with pytest.raises(cli.UsageError, match=reason):
    registry.load(MODELS, 'theirs')


def test_a_name_of_two_modules_is_refused_where_it_is_asked_for(install):
  install('theirs', MODELS, 'cnn', 'their_net')
  assert registry.find(MODELS)['cnn'] == 'distmnist.models.cnn'
  registry.load_all(MODELS)
  registry.load(MODELS, 'softmax')
  with pytest.raises(cli.UsageError) as caught:
    registry.load(MODELS, 'cnn')
  for named in "'cnn'", 'distmnist.models.cnn', 'their_net (of theirs)':
    assert named in str(caught.value)


def test_two_packages_that_add_one_name_are_both_named(install):
  install('theirs', MODELS, 'wide', 'their_net')
  install('ours', MODELS, 'wide', 'our_net')
  with pytest.raises(cli.UsageError) as caught:
    registry.load(MODELS, 'wide')
  for named in 'their_net (of theirs)', 'our_net (of ours)':
    assert named in str(caught.value)
