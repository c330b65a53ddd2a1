"""problem_source: a run knows from which source it was begun."""

import types

import pytest

from distmnist.logdir import run_flags
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_source
from tests.support import problems


def test_a_source_that_has_changed_is_named(set_flags, tmp_path):
  path = problems.write(tmp_path / 'mine.py', 'load = build = loss = print\n')
  found = problems.load(path, set_flags)
  logdir = tmp_path / 'run'
  logdir.mkdir()
  assert problem_source.find_change(found, str(logdir)) is None
  problem_source.keep(found, str(logdir))
  assert problem_source.find_change(found, str(logdir)) is None
  (logdir / 'problem.py').write_text('load = build = loss = len\n')
  assert problem_source.find_change(found, str(logdir)) == (
    f'--problem={path} has changed since the run in {logdir} began: '
    f'{logdir}/problem.py is what it was'
  )


def test_what_a_resumed_run_replaces_is_where_its_line_says(
  set_flags, tmp_path
):
  source = '# coding: latin-1\n# \xe9\nload = build = loss = print\n'
  path = tmp_path / 'mine.py'
  path.write_text(source, encoding='latin-1')
  found = problems.load(str(path), set_flags)
  (tmp_path / 'problem.py').write_text('load = build = loss = len\n')
  line = problem_source.find_change(found, str(tmp_path), is_resumed=True)
  before = tmp_path / 'distmnist-files' / 'problem_before.py'
  assert line.endswith(f' began: {before} is what it was')
  for _ in range(2):
    problem_source.keep(found, str(tmp_path))
    assert before.read_text() == 'load = build = loss = len\n'
  assert problem_source.find_change(found, str(tmp_path)) is None


def test_the_images_have_no_source(set_flags, tmp_path):
  set_flags()
  found = problem_lib.from_flags()
  problem_source.keep(found, str(tmp_path))
  assert problem_source.find_change(found, str(tmp_path)) is None
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_may_go_on_by_another_path_of_its_problem(
  set_flags, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  problems.write(tmp_path / 'mine.py', 'load = build = loss = print\n')
  found = problems.load('mine.py', set_flags)
  run_flags.write(str(tmp_path))
  problem_source.keep(found, str(tmp_path))

  def find_names(path):
    found = problems.load(str(path), set_flags)
    return problem_source.flags_of_meaning(found, str(tmp_path))

  assert find_names(tmp_path / 'mine.py') == []
  (tmp_path / 'sub').mkdir()
  other = tmp_path / 'sub' / 'mine.py'
  problems.write(other, 'load = build = loss = print\n')
  assert find_names(other) == []
  third = problems.write(
    tmp_path / 'sub' / 'third.py', 'load = build = loss = len\n'
  )
  assert find_names(third) == ['problem']


def test_a_loop_of_its_own_has_no_source_and_a_run_without_a_folder_keeps_none(
  tmp_path,
):
  problem_source.keep(None, str(tmp_path))
  assert not list(tmp_path.iterdir())
  assert problem_source.find_change(None, str(tmp_path)) is None
  custom = types.SimpleNamespace(is_custom=True)
  assert problem_source.find_change(custom, None) is None
