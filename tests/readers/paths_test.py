"""paths: the files of a pattern."""

import pytest

from distmnist.readers import paths


def test_a_pattern_is_its_files_in_order(tmp_path):
  for name in ('b1', 'b0', 'a0'):
    (tmp_path / name).write_text(name)
  (tmp_path / 'b2').mkdir()
  b = [str(tmp_path / 'b0'), str(tmp_path / 'b1')]
  assert paths.find(f'{tmp_path}/b*') == b
  assert paths.find([f'{tmp_path}/b*', f'{tmp_path}/a0'])[:2] == b


def test_a_pattern_without_files_is_named():
  with pytest.raises(ValueError, match=r'^/no/\*\.csv: no such file$'):
    paths.find('/no/*.csv')


def test_files_are_told_by_name_and_size(tmp_path):
  (tmp_path / 'a').write_text('1')
  first = paths.identify([str(tmp_path / 'a')])
  (tmp_path / 'a').write_text('22')
  assert paths.identify([str(tmp_path / 'a')]) != first


def test_a_name_may_have_brackets(tmp_path):
  path = tmp_path / 'a[1].csv'
  path.write_text('x')
  assert paths.find(str(path)) == [str(path)]
