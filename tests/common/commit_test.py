"""commit: of a clone, of a built package, of neither."""

import os
import subprocess

import pytest

from distmnist.common import commit

HASH = '0123456789abcdef0123456789abcdef01234567'


def git(folder, *words):
  env = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')}
  author = '-c', 'user.name=n', '-c', 'user.email=e'
  command = ['git', '-C', str(folder), *author, *words]
  done = subprocess.run(
    command, env=env, check=True, capture_output=True, text=True
  )
  return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
  commit.find.cache_clear()
  (tmp_path / 'distmnist').mkdir()
  (tmp_path / 'distmnist' / 'a.py').write_text('a = 1\n')
  return tmp_path / 'distmnist'


@pytest.mark.parametrize('is_of_hook', [False, True])
def test_a_clone_says_its_commit_and_whether_the_package_has_changed(
  package, monkeypatch, is_of_hook
):
  if is_of_hook:
    monkeypatch.setenv('GIT_DIR', '/nowhere')
  git(package.parent, 'init', '-q')
  git(package.parent, 'add', '.')
  git(package.parent, 'commit', '-qm', 'm')
  head = git(package.parent, 'rev-parse', 'HEAD')
  (package.parent / 'notes').write_text('not of the package')
  assert commit.find(package) == head
  commit.find.cache_clear()
  (package / 'b.py').write_text('b = 1\n')
  assert commit.find(package) == f'{head} and changes'


def test_a_built_package_says_what_was_recorded(package):
  assert commit.find(package) is None
  commit.find.cache_clear()
  (package / commit.FILE).write_text(f'{HASH}\n')
  assert commit.find(package) == HASH


def test_a_package_installed_within_a_clone_of_something_else_is_not_of_it(
  package,
):
  site = package.parent / 'venv' / 'distmnist'
  site.mkdir(parents=True)
  git(package.parent, 'init', '-q')
  assert commit.find(site) is None
