"""numbered_file: which one has a folder, by the number of its file."""

import os

import pytest

from distmnist.common import cli, numbered_file, takeover
from distmnist.storage import paths, process_tag, stores
from tests.support.owners import Clock, make, take


@pytest.fixture
def both(tmp_path):
  """Two that want to own the same."""
  path = str(tmp_path / 'owner.json')
  return [numbered_file.find(path) for _ in range(2)]


def test_of_two_one_makes_the_file_and_the_other_finds_it(both, tmp_path):
  assert [file.read() for file in both] == [None, None]
  assert [file.create({'pid': n}) for n, file in enumerate(both)] == [
    True,
    False,
  ]
  assert [file.read() for file in both] == [{'pid': 0}, {'pid': 0}]
  assert both[1].create({'pid': 1})
  assert both[0].read() == {'pid': 1}
  assert os.listdir(tmp_path) == ['owner.json.00000002']


def test_one_that_waited_while_two_others_came_has_nothing(both, tmp_path):
  """The number that it saw is free again, but no longer the next."""
  slow, fast = both
  assert fast.create({}) and slow.read() == {}
  for _ in range(3):
    fast.read()
    assert fast.create({})
  assert not slow.create({})
  assert os.listdir(tmp_path) == ['owner.json.00000004']


def test_what_another_has_removed_by_then_is_no_error(both, monkeypatch):
  slow, fast = both
  assert slow.read() is None
  for _ in range(2):
    fast.read()
    assert fast.create({})
  list_numbers = slow._list_numbers

  def list_and_be_slow():
    found = list_numbers()
    fast.read()
    assert fast.create({})
    return found

  monkeypatch.setattr(slow, '_list_numbers', list_and_be_slow)
  assert not slow.create({})


@pytest.mark.parametrize('text', ['', '{', '"x"'])
def test_a_damaged_file_says_nothing(both, tmp_path, text):
  (tmp_path / 'owner.json.00000001').write_text(text)
  assert both[0].read() == {}


@pytest.fixture
def folder(store, tmp_path):
  return f'{store.url}/{tmp_path.name}'


@pytest.fixture
def elsewhere(monkeypatch):
  """Makes the owners be on another machine, of which nothing is known."""
  monkeypatch.setattr(process_tag, 'read_machine', lambda: None)


def be_silent(monkeypatch, secs):
  """Makes the clock of the store say that owners were silent `secs` longer."""
  seen = numbered_file.RemoteNumberedFile.see_touch

  def see_touch(self):
    touched, silent_secs = seen(self)
    return touched, silent_secs + secs

  monkeypatch.setattr(numbered_file.RemoteNumberedFile, 'see_touch', see_touch)


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_that_slept_while_another_took_over_writes_no_more(
  folder, elsewhere, monkeypatch
):
  first = take(folder)
  be_silent(monkeypatch, takeover.SILENT_SECS + 10)
  second = take(folder, pause=Clock(lambda: None))
  with pytest.raises(cli.LostError, match='was taken over by process'):
    first.check()
  first.release()
  second.check()


@pytest.mark.slow
def test_of_two_that_take_over_at_once_the_store_lets_one(folder):
  take(folder).release()
  both = [
    numbered_file.RemoteNumberedFile(f'{folder}/owner.json') for _ in range(2)
  ]
  for file in both:
    assert file.read()['has_ended']
  lives = 'first', 'second'
  taken = [
    file.create({'life': life}) for file, life in zip(both, lives, strict=True)
  ]
  assert taken == [True, False]
  assert [file.read()['life'] for file in both] == ['first', 'first']


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_touch_shows_by_the_clock_of_the_store(folder):
  take(folder)
  file = numbered_file.RemoteNumberedFile(f'{folder}/owner.json')
  file.read()
  _, silent_secs = file.see_touch()
  assert 0 <= silent_secs < 5
  assert paths.list_names(folder) == ['owner.json.00000001']


@pytest.mark.slow
def test_a_store_without_conditions_is_told_by_a_look(
  folder, monkeypatch, logged
):
  def create(url, content):
    stores.write(url, content)
    return True

  monkeypatch.setattr(stores, 'create', create)
  monkeypatch.setattr(numbered_file, '_SETTLE_SECS', 0.01)
  take(folder)
  [line] = logged
  assert 'this store may create an object where one exists' in line
  other = make(folder)
  with pytest.raises(cli.RunError, match='in use by process'):
    other.take()
  # Of two that write at the same moment, the last has it.
  file = numbered_file.RemoteNumberedFile(f'{folder}/late/owner.json')

  def sleep(secs):
    stores.write(f'{folder}/late/owner.json.00000001', b'{"life": "late"}')

  monkeypatch.setattr(numbered_file.time, 'sleep', sleep)
  assert not file.create({'life': 'early'})
