"""versions: of what the numbers of a run may depend on."""

import platform

import distmnist
from distmnist.common import commit, versions


def test_the_libraries_have_versions_and_the_package_its_commit(monkeypatch):
  monkeypatch.setattr(commit, 'find', lambda package: 'abc')
  found = versions.find()
  assert list(found) == [
    *('distmnist', 'commit', 'Python', 'tensorflow', 'numpy', 'keras')
  ]
  assert found['distmnist'] == distmnist.__version__
  assert found['Python'] == platform.python_version()
  assert all(found.values())


def test_without_a_known_commit_none_is_named(monkeypatch):
  monkeypatch.setattr(commit, 'find', lambda package: None)
  assert 'commit' not in versions.find()
