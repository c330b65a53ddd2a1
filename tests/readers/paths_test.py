"""paths: the files of a pattern."""

import os

import pytest

from distmnist.readers import paths
from distmnist.storage import copies
from distmnist.storage import paths as storage_paths


def test_a_pattern_is_its_files_in_order(tmp_path):
  for name in ('b1', 'b0', 'a0'):
    (tmp_path / name).write_text(name)
  (tmp_path / 'b2').mkdir()
  b = [str(tmp_path / 'b0'), str(tmp_path / 'b1')]
  assert paths.find(f'{tmp_path}/b*') == b
  assert paths.find([f'{tmp_path}/b*', f'{tmp_path}/a0'])[:2] == b


def test_a_path_need_not_be_text(tmp_path):
  (tmp_path / 'a.csv').write_text('')
  expected = [str(tmp_path / 'a.csv')]
  assert paths.find(tmp_path / 'a.csv') == expected
  assert paths.find([tmp_path / '*.csv']) == expected


def test_a_folder_or_nothing_is_no_pattern(tmp_path):
  with pytest.raises(ValueError, match=f'^{tmp_path}: a folder: give files, '):
    paths.find(tmp_path)
  with pytest.raises(ValueError, match='no file was given: expected a pat'):
    paths.find([])


def test_a_pattern_without_files_is_named():
  with pytest.raises(ValueError, match=r'^/no/\*\.csv: no such file$'):
    paths.find('/no/*.csv')


def test_files_are_told_by_name_size_and_content(tmp_path):
  (tmp_path / 'a').write_text('1')
  first = paths.identify([str(tmp_path / 'a')])
  for other in ('22', '2'):
    (tmp_path / 'a').write_text(other)
    assert paths.identify([str(tmp_path / 'a')]) != first
  (tmp_path / 'a').rename(tmp_path / 'b')
  (tmp_path / 'b').write_text('1')
  assert paths.identify([str(tmp_path / 'b')]) != first


def test_few_of_many_files_are_opened(tmp_path, monkeypatch):
  names = [str(tmp_path / f'{i:03}') for i in range(300)]
  for name in names:
    open(name, 'w').close()
  opened, read = [], paths.sample
  monkeypatch.setattr(
    paths, 'sample', lambda *args: opened.append(args) or read(*args)
  )
  paths.identify(names)
  assert len(opened) == 60


def test_a_name_may_have_brackets(tmp_path):
  path = tmp_path / 'a[1].csv'
  path.write_text('x')
  assert paths.find(str(path)) == [str(path)]


@pytest.mark.slow
def test_a_pattern_of_a_store_fits_what_one_of_this_machine_fits(store):
  """Not a folder, which cannot be copied as a file, and no hidden file."""
  url = f'{store.url}/found'
  for name in ('b1', 'b0', 'b2/x', '.b3', 'a[1].csv'):
    storage_paths.write(f'{url}/{name}', b'x')

  def find(pattern):
    return [os.path.basename(path) for path in paths.find(f'{url}/{pattern}')]

  assert find('b*') == ['b0', 'b1']
  assert find('*') == ['a[1].csv', 'b0', 'b1']
  assert find('.b*') == ['.b3']
  assert find('a[1].csv') == ['a[1].csv']
  with pytest.raises(ValueError, match='/c: no such file$'):
    find('c')


def test_a_file_has_another_version_when_it_has_changed(tmp_path):
  path = tmp_path / 'a'
  path.write_text('1')
  first = paths.find_version(str(path))
  assert paths.find_version(str(path)) == first
  os.utime(path, (0, 0))
  assert paths.find_version(str(path)) != first


@pytest.mark.slow
def test_copies_of_a_file_in_a_store_are_one_version(store, monkeypatch):
  """Each task has its own, and all are to find one file in the cache."""
  versions = []
  for content in (b'1', b'1', b'2'):
    storage_paths.write(f'{store.url}/version/a', content)
    [copy] = paths.find(f'{store.url}/version/a')
    versions.append((copy, paths.find_version(copy)))
    monkeypatch.setattr(copies, '_files', {})
  (a, first), (b, second), (_, third) = versions
  assert a != b and first == second != third
