"""stores: what is done with objects of a store that really runs."""

from distmnist.storage import stores


def test_what_is_written_is_read_listed_moved_and_removed(store, tmp_path):
  url = f'{store.url}/a/run'
  assert stores.list_entries(url) == []
  assert not stores.exists(f'{url}/x')
  stores.write(f'{url}/x', b'one')
  (tmp_path / 'y').write_bytes(b'two' * 7)
  stores.upload(str(tmp_path / 'y'), f'{url}/best/y')
  assert stores.read(f'{url}/x') == b'one'
  assert stores.exists(f'{url}/x') and stores.exists(f'{url}/best')
  found = {e['name']: e['type'] for e in stores.list_entries(url)}
  assert found == {
    'training/a/run/x': 'file',
    'training/a/run/best': 'directory',
  }
  stores.move(f'{url}/x', f'{url}/aside/x')
  stores.move(f'{url}/best', f'{url}/aside/best')
  stores.download(f'{url}/aside/best/y', str(tmp_path / 'z'))
  assert (tmp_path / 'z').read_bytes() == b'two' * 7
  assert not stores.exists(f'{url}/x') and not stores.exists(f'{url}/best')
  assert stores.modified(f'{url}/aside/x') > 1e9
  stores.remove(f'{url}/aside/x')
  stores.remove(f'{url}/aside/x')
  stores.remove(f'{url}/aside', is_folder=True)
  assert stores.list_entries(url) == []


def test_an_object_is_created_once(store):
  url = f'{store.url}/create/x'
  assert stores.create(url, b'mine')
  assert not stores.create(url, b'yours')
  # As where the answer to the first request was lost.
  assert stores.create(url, b'mine')
  assert stores.read(url) == b'mine'
