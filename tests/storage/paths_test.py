"""paths: the same answers for a folder of this machine and one of a store."""

import pytest

from distmnist.storage import paths


@pytest.fixture(params=['here', 'in a store'])
def folder(request, tmp_path):
  if request.param == 'here':
    return str(tmp_path / 'run')
  return f'{request.getfixturevalue("store").url}/{tmp_path.name}'


def write(path, text):
  if '://' in path:
    paths.stores.write(path, text.encode())
  else:
    with open(path, 'w') as file:
      file.write(text)


def test_files_are_found_read_renamed_and_removed(folder):
  assert not paths.exists(folder) and not paths.is_folder(folder)
  assert paths.list_names(folder) == []
  paths.make_folders(f'{folder}/aside')
  write(f'{folder}/x', 'text')
  assert paths.exists(f'{folder}/x') and not paths.exists(f'{folder}/y')
  assert paths.is_folder(folder) and not paths.is_folder(f'{folder}/x')
  assert paths.read_text(f'{folder}/x') == 'text'
  assert paths.read_bytes(f'{folder}/x') == b'text'
  assert paths.get_version(f'{folder}/x')
  assert paths.get_version(f'{folder}/y') is None
  paths.rename(f'{folder}/x', f'{folder}/aside/x')
  assert paths.list_names(folder) == ['aside']
  with pytest.raises(FileNotFoundError):
    paths.read_bytes(f'{folder}/x')
  paths.remove(f'{folder}/aside/x')
  paths.remove_folder(folder)
  assert not paths.is_folder(folder)
