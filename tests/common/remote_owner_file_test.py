"""remote_owner_file: which one has a folder of a store, by numbered objects."""

import pytest

from distmnist.common import cli, owner_file, remote_owner_file, takeover
from distmnist.storage import paths, stores
from tests.support.owners import make, take

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(store, tmp_path):
  return f'{store.url}/{tmp_path.name}'


@pytest.fixture
def elsewhere(monkeypatch):
  """Makes the owners be on another machine, of which nothing is known."""
  monkeypatch.setattr(owner_file, '_read_machine', lambda: None)


def be_silent(monkeypatch, secs):
  """Makes the clock of the store say that owners were silent `secs` longer."""
  seen = remote_owner_file.RemoteOwnerFile.see_touch

  def see_touch(self):
    touched, silent_secs = seen(self)
    return touched, silent_secs + secs

  monkeypatch.setattr(remote_owner_file.RemoteOwnerFile, 'see_touch', see_touch)


def test_the_second_is_refused_and_follows_the_first(folder):
  first = take(folder)
  with pytest.raises(cli.RunError, match='in use by process'):
    take(folder)
  first.check()
  first.release()
  second = take(folder)
  assert second.run == first.run
  assert paths.list_names(folder) == ['owner.json.00000002']
  second.check()


def test_one_that_slept_while_another_took_over_writes_no_more(
  folder, elsewhere, monkeypatch
):
  first = take(folder)
  be_silent(monkeypatch, takeover.SILENT_SECS + 10)
  second = take(folder)
  with pytest.raises(cli.LostError, match='was taken over by process'):
    first.check()
  first.release()
  second.check()


def test_of_two_that_take_over_at_once_the_store_lets_one(folder):
  take(folder).release()
  files = [
    remote_owner_file.RemoteOwnerFile(f'{folder}/owner.json') for _ in range(2)
  ]
  for file in files:
    assert file.read()['has_ended']
  for file, life in zip(files, ['first', 'second'], strict=True):
    file.replace({'life': life})
  assert [file.read()['life'] for file in files] == ['first', 'first']


def test_a_folder_that_was_removed_is_made_again_out_loud(folder, logged):
  first, told = take(folder), []
  first.keep(on_loss=None, on_removed=lambda: told.append(True))
  paths.remove_folder(folder)
  first.check()
  first.check()
  [line] = logged
  assert line.startswith(f'--logdir={folder} was removed by somebody: ')
  assert told == [True]
  first.release()


def test_a_touch_shows_by_the_clock_of_the_store(folder):
  take(folder)
  file = remote_owner_file.RemoteOwnerFile(f'{folder}/owner.json')
  file.read()
  _, silent_secs = file.see_touch()
  assert 0 <= silent_secs < 5
  assert paths.list_names(folder) == ['owner.json.00000001']


def test_a_store_without_conditions_is_told_by_a_look(
  folder, monkeypatch, logged
):
  def create(url, content):
    stores.write(url, content)
    return True

  monkeypatch.setattr(stores, 'create', create)
  monkeypatch.setattr(remote_owner_file, '_SETTLE_SECS', 0.01)
  take(folder)
  [line] = logged
  assert 'this store may create an object where one exists' in line
  other = make(folder)
  with pytest.raises(cli.RunError, match='in use by process'):
    other.take()
  # Of two that write at the same moment, the last has it.
  file = remote_owner_file.RemoteOwnerFile(f'{folder}/late/owner.json')

  def sleep(secs):
    stores.write(f'{folder}/late/owner.json.00000001', b'{"life": "late"}')

  monkeypatch.setattr(remote_owner_file.time, 'sleep', sleep)
  assert not file.create({'life': 'early'})
