"""mirror: files that grow are put into a store."""

import os

import pytest

from distmnist.storage import mirror, paths, retries


@pytest.fixture(autouse=True)
def closed(monkeypatch):
  monkeypatch.setattr(retries, 'WAITS_SECS', ())
  yield
  mirror.close()


def write(folder, text):
  with open(os.path.join(folder, 'x.log'), 'a') as file:
    file.write(text)


def test_what_has_grown_is_put_at_the_end(store):
  url = f'{store.url}/grows/end'
  folder = mirror.localize(url)
  assert mirror.localize(url) == folder
  write(folder, 'one\n')
  mirror.close(folder)
  assert paths.read_bytes(f'{url}/x.log') == b'one\n'


@pytest.mark.slow
def test_and_meanwhile(store, monkeypatch):
  monkeypatch.setattr(mirror, '_LOOK_SECS', 0.01)
  monkeypatch.setattr(mirror, '_IDLE_PER_BUSY', 0.1)
  url = f'{store.url}/grows/meanwhile'
  folder = mirror.localize(url)
  for text in (b'one\n', b'one\ntwo\n'):
    write(folder, text.decode()[-4:])
    while not paths.exists(f'{url}/x.log') or (
      paths.read_bytes(f'{url}/x.log') != text
    ):
      pass


def test_what_cannot_be_put_is_said_once_and_ends_nothing(store, logged):
  store.trouble = lambda method, path: 'denied'
  folder = mirror.localize(f'{store.url}/grows/denied')
  write(folder, 'one\n')
  mirror.close()
  assert logged == [
    f'{store.url}/grows/denied cannot be written: Access Denied; the run goes '
    f'on, and {folder} has what is missing there'
  ]


def test_a_folder_of_this_machine_is_itself(tmp_path):
  assert mirror.localize(str(tmp_path)) == str(tmp_path)
