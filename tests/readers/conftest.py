"""A cache for each test."""

import tempfile

import pytest


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
  """The path of the default of --data_cache."""
  folder = tmp_path_factory.mktemp('tmp')
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  return folder
