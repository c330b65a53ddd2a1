"""problem_module: the module of --problem, found and imported before flags."""

import os
import re
import sys

import pytest
from absl import flags

from distmnist.common import cli
from distmnist.training.problems import problem_module
from tests.support import problems


def test_its_flags_are_known_when_the_command_line_is_parsed(
  set_flags, tmp_path
):
  set_flags()
  path = problems.write(
    tmp_path / 'with_flag.py',
    """
    from absl import flags
    RATE = flags.DEFINE_float('rate_of_mine', 1, 'A rate.')
    """,
  )
  file = tmp_path / 'run.flags'
  file.write_text(f'--problem={path}\n--rate_of_mine=3\n')
  words = [f'--flagfile={file}']
  cli.run(
    lambda: None,
    ['train', *words],
    leave=lambda code: None,
    prepare=problem_module.import_named,
  )
  assert flags.FLAGS.rate_of_mine == 3
  named, module = problem_module.load()
  assert named == path and module.RATE.value == 3


def test_without_the_flag_there_is_none(set_flags):
  set_flags()
  assert problem_module.load() == ('', None)


def test_what_lies_beside_it_can_be_imported(tmp_path):
  (tmp_path / 'layers_of_mine.py').write_text('UNITS = 7')
  path = problems.write(
    tmp_path / 'with_import.py', 'from layers_of_mine import UNITS'
  )
  problem_module.import_named(['--problem', path])


def test_a_file_of_a_package_can_import_what_is_in_the_package(tmp_path):
  inner = tmp_path / 'files_of_mine' / 'nets'
  inner.mkdir(parents=True)
  for folder in inner, inner.parent:
    (folder / '__init__.py').touch()
  (inner.parent / 'sizes.py').write_text('UNITS = 7')
  path = problems.write(inner / 'net.py', 'from ..sizes import UNITS')
  problem_module.import_named(['--problem', path])


def test_a_file_changed_within_a_second_counts_as_it_is_now(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('sys.dont_write_bytecode', False)
  for units in (1, 2):
    path = problems.write(tmp_path / 'edited.py', f'width = {units}')
    os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(problem_module, '_loaded', {})
    problem_module.import_named(['--problem', path])
    module = problem_module._loaded[path]
    assert module.width == units
    del sys.modules['edited']
  assert not (tmp_path / '__pycache__').exists()


def test_a_module_is_named_with_dots(tmp_path, set_flags, monkeypatch):
  package = tmp_path / 'package_of_mine'
  package.mkdir()
  (package / '__init__.py').write_text('')
  (package / 'task.py').write_text('NAME = __name__')
  monkeypatch.syspath_prepend(str(tmp_path))
  problem_module.import_named(['--problem=package_of_mine.task'])
  set_flags('--problem=package_of_mine.task')
  assert problem_module.load()[1].NAME == 'package_of_mine.task'


@pytest.mark.parametrize(
  'named, other',
  [
    ('clicks', 'distmnist/problems/clicks.py'),
    ('net_of_two_kinds', 'net_of_two_kinds/__init__.py'),
  ],
)
def test_a_file_beside_a_module_of_its_name_is_refused(
  tmp_path, monkeypatch, named, other
):
  # Another test of this process may have asked for it.
  monkeypatch.setattr(problem_module, '_loaded', {})
  (tmp_path / 'net_of_two_kinds').mkdir()
  (tmp_path / 'net_of_two_kinds' / '__init__.py').write_text('')
  (tmp_path / f'{named}.py').write_text('')
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(cli.UsageError) as caught:
    problem_module.import_named([f'--problem={named}'])
  assert re.match(f'--problem={named} is the name of .*', str(caught.value))
  assert (
    f'{other} and of {tmp_path}/{named}.py: give --problem={named}.py '
    in (str(caught.value))
  )


@pytest.mark.parametrize(
  'name, text, message',
  [
    ('none.py', None, 'no such file in .*; all tasks need it, under the same'),
    ('none.at.all', None, 'no such module; give a file that ends in .py, or'),
    ('a.py', 'import nothing_of_that', 'a.py:1: ModuleNotFoundError: No modul'),
    ('b.py', 'x = 1\nx = = 2', 'b.py:2: SyntaxError: invalid syntax'),
    ('c.py', '\n\n1 / 0', 'c.py:3: ZeroDivisionError: division by zero'),
    (
      'd.py',
      "import argparse\nargparse.ArgumentParser().error('unknown: --problem')",
      r'd.py:2: it ends the program .*absl.flags, not argparse',
    ),
    ('e.py', 'raise StopIteration', 'e.py:1: StopIteration: no reason given'),
  ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path, name, text, message):
  named = name
  if name.endswith('.py'):
    named = str(tmp_path / name)
  if text is not None:
    (tmp_path / name).write_text(text)
  with pytest.raises(cli.UsageError, match=message) as caught:
    problem_module.import_named([f'--problem={named}'])
  assert re.match(r'--problem=\S+', str(caught.value))


def test_a_long_value_is_shortened():
  assert problem_module.shorten(list(range(100))).endswith('...')
  assert problem_module.shorten(3) == '3'
