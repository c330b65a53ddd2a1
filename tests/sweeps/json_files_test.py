"""A JSON file comes back as it was, and is whole or not there."""

import pytest

from distmnist.sweeps import json_files


def test_what_is_written_is_read(tmp_path):
  path = str(tmp_path / 'x.json')
  json_files.write(path, {'a': [1, None, 'é']})
  assert json_files.read(path) == {'a': [1, None, 'é']}
  with pytest.raises(TypeError):
    json_files.write(path, {'a': {1}})
  assert json_files.read(path)['a'][0] == 1
  assert [p.name for p in tmp_path.iterdir()] == ['x.json']


def test_what_is_no_json_is_an_error(tmp_path):
  (tmp_path / 'x').write_text('{')
  with pytest.raises(ValueError):
    json_files.read(str(tmp_path / 'x'))
