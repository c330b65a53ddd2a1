"""copies: what is in a store, brought here and put there."""

import os

import pytest

from distmnist.storage import copies, paths


@pytest.mark.slow
def test_a_prefix_is_brought_once_until_it_changes(store):
  url = f'{store.url}/prefix'
  for name in ('a-1.data', 'a-1.index', 'a-11.index'):
    paths.write(f'{url}/{name}', name.encode())
  local = copies.fetch_prefix(f'{url}/a-1')
  assert sorted(os.listdir(os.path.dirname(local))) == ['a-1.data', 'a-1.index']
  store.requests.clear()
  assert copies.fetch_prefix(f'{url}/a-1') == local
  assert len(store.requests) == 1  # The list alone.
  paths.write(f'{url}/a-1.data', b'another')
  local = copies.fetch_prefix(f'{url}/a-1')
  with open(f'{local}.data', 'rb') as file:
    assert file.read() == b'another'
  # Four others, and the first is gone.
  for name in ('a-11', 'none', 'none-1', 'none-2'):
    copies.fetch_prefix(f'{url}/{name}')
  assert not os.path.exists(f'{local}.data')


def test_what_is_here_is_itself(tmp_path):
  path = str(tmp_path / 'x')
  assert copies.fetch_prefix(path) == path
  assert copies.fetch_file(path) == path
  assert copies.fetch_folder(path) == path
  with copies.drafting(path) as draft:
    assert draft == path


@pytest.mark.slow
def test_a_folder_goes_there_with_the_last_file_last_and_comes_back(
  store, tmp_path
):
  url, folder = f'{store.url}/folder', tmp_path / 'model'
  (folder / 'sub').mkdir(parents=True)
  (folder / 'all.pb').write_text('last')
  (folder / 'sub' / 'x').write_text('first')
  put, checked_after = [], []
  store.trouble = lambda method, path: method == 'PUT' and put.append(path)
  copies.upload_folder(
    str(folder),
    url,
    lambda name: name == 'all.pb',
    lambda: checked_after.append(len(put)),
  )
  assert [os.path.basename(path) for path in put] == ['x', 'all.pb']
  assert checked_after == [1]
  # A / at the end of an address is no part of a name.
  copies.upload_folder(str(folder), f'{url}/')
  local = copies.fetch_folder(f'{url}/')
  assert sorted(os.listdir(local)) == ['all.pb', 'sub']
  assert os.listdir(os.path.join(local, 'sub')) == ['x']


@pytest.mark.slow
def test_a_draft_is_put_when_it_is_done(store):
  url = f'{store.url}/draft/x'
  with pytest.raises(KeyError), copies.drafting(url) as path:
    with open(path, 'w') as file:
      file.write('half')
    raise KeyError
  assert not paths.exists(url)
  with copies.drafting(url) as path, open(path, 'w') as file:
    file.write('whole')
  assert paths.read_bytes(url) == b'whole'
  assert not os.path.exists(path)
  with open(copies.fetch_file(url)) as file:
    assert file.read() == 'whole'
