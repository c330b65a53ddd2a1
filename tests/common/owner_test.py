"""owner: one process writes a folder."""

import errno
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time

import pytest

from distmnist.common import cli, layout, owner, owner_file
from distmnist.storage import disk, paths, process_tag
from tests.support.background import wait_until
from tests.support.owners import Clock, be_elsewhere, make, take


def hold(folder):
  """Returns the context of a launcher that owns the folder."""
  return owner.held_by_launcher(str(folder), on_loss=None)


@pytest.fixture(
  params=['disk', 'memory', pytest.param('s3', marks=pytest.mark.slow)]
)
def folder(request, tmp_path):
  """Where an owner's file may lie."""
  if request.param == 'disk':
    return str(tmp_path)
  if request.param == 'memory':
    return f'memory://{tmp_path.name}'
  return f'{request.getfixturevalue("store").url}/{tmp_path.name}'


@pytest.fixture
def elsewhere(monkeypatch):
  """Makes the owners be on another machine, of which nothing is known."""
  monkeypatch.setattr(process_tag, 'read_machine', lambda: None)


def set_clock_forward(monkeypatch, secs):
  see_now = paths.see_now
  monkeypatch.setattr(paths, 'see_now', lambda place: see_now(place) + secs)


def test_who_has_ended_leaves_the_folder_and_the_name_of_the_run(tmp_path):
  first = take(tmp_path)
  first.release()
  assert owner.find_living(str(tmp_path)) is None
  second = take(tmp_path)
  assert second.run == first.run
  assert second.me['life'] != first.me['life']
  second.release()
  assert take(tmp_path, is_new_run=True).run != first.run


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


def test_a_launcher_finds_out_before_it_touches_anything(tmp_path):
  logdir = tmp_path / 'run'
  logdir.mkdir()
  chief = take(logdir)
  with pytest.raises(cli.RunError, match='^--logdir=.* is in use by process'):
    hold(logdir).__enter__()
  assert os.listdir(logdir / 'distmnist-files') == ['owner.json.00000001']
  chief.release()
  with hold(logdir):
    # Its chief has a file of its own.
    take(logdir).release()
  with hold(logdir):  # It may launch once more.
    pass


@pytest.mark.slow
def test_of_two_launchers_the_second_is_refused(tmp_path):
  code = (
    'import sys; from distmnist.common import owner\n'
    'with owner.held_by_launcher(sys.argv[1], print):\n'
    '  print("taken", flush=True); sys.stdin.read()'
  )
  with subprocess.Popen(
    [sys.executable, '-c', code, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as other:
    assert other.stdout.readline() == 'taken\n'
    with pytest.raises(cli.RunError, match=f'in use by process {other.pid} '):
      hold(tmp_path).__enter__()
    other.communicate()
  [path] = (tmp_path / 'distmnist-files').iterdir()
  assert json.loads(path.read_text())['has_ended']
  with hold(tmp_path):
    pass


def test_a_launcher_has_the_folder_as_long_as_its_run(tmp_path, monkeypatch):
  """A notebook lives on: others may launch there, or remove the folder."""
  monkeypatch.setattr(owner, 'TOUCH_SECS', 0.001)
  folder = tmp_path / 'run'
  with hold(folder):
    assert owner.has_launcher(str(folder))
  assert not owner.has_launcher(str(folder))
  before = set(threading.enumerate())
  with hold(folder):
    made = set(threading.enumerate()) - before
    folder.rename(tmp_path / 'elsewhere')
    wait_until(folder.exists, lambda: 'not made again')
  shutil.rmtree(folder)
  assert made
  wait_until(lambda: not any(x.is_alive() for x in made), lambda: made)
  assert not folder.exists()


def test_a_launcher_learns_at_once_that_it_has_lost_the_folder(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(owner, 'TOUCH_SECS', 0.001)
  lost = queue.SimpleQueue()
  with owner.held_by_launcher(str(tmp_path), lost.put):
    # Of another machine, which believes that this one is gone.
    other = owner_file.describe_self() | {'host': 'b'}
    text = json.dumps(other)
    # Made whole, as owners make it: the thread that looks may look at any time.
    place = tmp_path / 'distmnist-files' / 'launcher.json.00000002'
    assert disk.create(str(place), text.encode())
    said = str(lost.get(timeout=60))
  assert said.startswith(f'--logdir={tmp_path} was taken over by ')
  assert f'process {os.getpid()} of host b since {other["since"]}' in said
  assert place.read_text() == text


@pytest.mark.parametrize('is_remote', [False, True])
def test_a_touch_under_way_does_not_undo_the_end(
  tmp_path, monkeypatch, is_remote
):
  """The next owner, of another host, would wait for half a minute."""
  monkeypatch.setattr(owner, 'TOUCH_SECS', 0.001)
  owner_ = take(tmp_path)
  if is_remote:
    file = MadeByWriting(str(tmp_path / 'distmnist-files' / 'owner.json'))
    file._highest = file._mine = 1
    owner_._file = file
  begun, goes_on = threading.Event(), threading.Event()
  touch = owner_._file.touch

  def touch_slowly(found):
    found = dict(found)
    begun.set()
    goes_on.wait(60)
    touch(found)

  monkeypatch.setattr(owner_._file, 'touch', touch_slowly)
  owner_.keep(on_loss=None, on_removed=None)
  assert begun.wait(60)
  ending = threading.Thread(target=owner_.release)
  ending.start()
  goes_on.set()
  ending.join(60)
  [path] = (tmp_path / 'distmnist-files').iterdir()
  assert json.loads(path.read_text())['has_ended']


class MadeByWriting(owner.NumberedFile):
  """Touched as an object of a store is: by writing it once more."""

  def touch(self, found):
    self.write(found)


def test_a_launcher_is_there_from_its_start_to_its_end(tmp_path):
  assert not owner.has_launcher(str(tmp_path))
  launcher = owner.Owner('--logdir', str(tmp_path), 'launcher.json')
  launcher.take()
  assert owner.has_launcher(str(tmp_path))
  assert not owner.has_owner(str(tmp_path))  # The chief, which comes later.
  launcher.release()
  assert not owner.has_launcher(str(tmp_path))


@pytest.mark.parametrize(('age', 'is_there'), [(1, True), (60, False)])
def test_one_of_another_host_is_there_while_it_touches_its_file(
  tmp_path, age, is_there
):
  layout.make_own_dir(str(tmp_path))
  path = tmp_path / 'distmnist-files' / 'launcher.json.00000001'
  me = owner_file.describe_self() | {'machine': 'another', 'pid': 1}
  path.write_text(json.dumps(me))
  os.utime(path, (time.time() - age,) * 2)
  assert owner.has_launcher(str(tmp_path)) == is_there


@pytest.mark.parametrize(
  'number, is_passing',
  [(errno.ENOSPC, True), (errno.ESTALE, True), (errno.EROFS, False)],
)
def test_a_folder_that_cannot_be_written_may_be_so_again(
  tmp_path, monkeypatch, number, is_passing
):
  def fail(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(os, 'link', fail)
  with pytest.raises(cli.RunError, match='cannot be written: ') as caught:
    make(tmp_path).take()
  assert isinstance(caught.value, cli.PassingError) == is_passing


@pytest.mark.parametrize(
  ('number', 'tries'), [(errno.ENOSPC, 3), (errno.EROFS, 1)]
)
def test_a_launcher_waits_for_room_in_its_folder(
  tmp_path, monkeypatch, logged, number, tries
):
  real, fails, waits = os.link, iter([None] * 2), []

  def link(*paths):
    for _ in fails:
      raise OSError(number, os.strerror(number))
    return real(*paths)

  monkeypatch.setattr(os, 'link', link)
  monkeypatch.setattr(owner.time, 'sleep', waits.append)
  if number == errno.EROFS:
    with pytest.raises(cli.RunError, match='cannot be written: '):
      hold(tmp_path).__enter__()
  else:
    with hold(tmp_path):
      assert owner.has_launcher(str(tmp_path))
  assert len(waits) == len(logged) == tries - 1


def test_the_second_is_refused_with_the_first_ones_name(tmp_path):
  first = take(tmp_path)
  with pytest.raises(cli.RunError) as caught:
    take(tmp_path)
  said = str(caught.value)
  assert said.startswith(f'--logdir={tmp_path} is in use by ')
  assert f'process {os.getpid()} of host {first.me["host"]} since' in said
  first.check()
  assert os.listdir(tmp_path / 'distmnist-files') == ['owner.json.00000001']
  assert owner.find_living(str(tmp_path))['life'] == first.me['life']


def test_a_file_that_is_missing_while_it_is_touched_is_looked_for_again(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(paths, 'may_vanish', lambda path: True)
  take(tmp_path)
  path = tmp_path / 'distmnist-files' / 'owner.json.00000001'
  path.rename(tmp_path / 'away')
  touch = Clock(lambda: (tmp_path / 'away').rename(path))
  with pytest.raises(cli.RunError, match='in use by process'):
    make(tmp_path).take(pause=touch)
  assert touch.num_looks == 1


@pytest.mark.slow
def test_who_was_killed_here_is_followed_at_once(tmp_path):
  code = (
    'import os, sys; from distmnist.common import owner;'
    'owner.Owner("--logdir", sys.argv[1]).take(); os._exit(9)'
  )
  subprocess.run([sys.executable, '-c', code, str(tmp_path)], check=False)
  found = owner.NumberedFile(
    str(tmp_path / 'distmnist-files' / 'owner.json')
  ).read()
  assert found['pid'] != os.getpid() and not found['has_ended']
  assert take(tmp_path, pause=Clock(lambda: None)).run == found['run']


def test_one_of_another_machine_that_was_silent_long_is_followed(tmp_path):
  take(tmp_path)
  be_elsewhere(tmp_path, owner.SILENT_SECS + 10)
  looks = Clock(lambda: None)
  take(tmp_path, pause=looks)
  # The clock of the file server may have been set forward since its last touch.
  assert looks.num_looks * owner.LOOK_SECS > 2 * owner.TOUCH_SECS


def test_one_that_is_seen_to_touch_has_the_folder_whatever_the_clock_says(
  tmp_path,
):
  take(tmp_path)
  path = be_elsewhere(tmp_path, owner.SILENT_SECS + 10)
  touched = iter(range(1000))

  def touch_at_times():
    if looks.num_looks % 10 == 0:
      os.utime(path, (1e9, 1e9 + next(touched)))

  looks = Clock(touch_at_times)
  with pytest.raises(cli.RunError, match='in use by process .* of host elsewh'):
    make(tmp_path).take(pause=looks)


def test_one_that_was_seen_to_touch_once_is_followed_when_it_is_silent(
  tmp_path,
):
  first = take(tmp_path)
  path = be_elsewhere(tmp_path, owner.SILENT_SECS + 10)

  def touch_once():
    if looks.num_looks == 1:
      os.utime(path, (1e9, 1e9))

  looks = Clock(touch_once)
  assert take(tmp_path, patience_secs=600, pause=looks).run == first.run


def test_one_of_another_machine_is_waited_for(tmp_path, logged):
  take(tmp_path)
  path = be_elsewhere(tmp_path)
  # Alive: its file is touched between two looks.
  touch = Clock(lambda: os.utime(path, (path.stat().st_atime, 1e9)))
  with pytest.raises(cli.RunError, match='in use by process .* of host elsewh'):
    make(tmp_path).take(pause=touch)
  assert touch.num_looks == 1
  [line] = logged
  assert line.startswith(f'waiting for --logdir={tmp_path}: process ')


def test_a_restarted_task_waits_for_the_end_of_the_one_before(tmp_path):
  first = take(tmp_path)
  take(tmp_path, patience_secs=60, pause=Clock(first.release))


def test_a_file_that_cannot_be_read_is_waited_for_and_replaced(tmp_path):
  layout.make_own_dir(str(tmp_path))
  path = tmp_path / 'distmnist-files' / 'owner.json.00000001'
  path.write_text('{')
  os.utime(path, (1e9, 1e9))
  take(tmp_path, pause=Clock(lambda: None))


@pytest.mark.slow
def test_of_many_at_once_one_gets_it(tmp_path):
  code = (
    'import sys; from distmnist.common import owner; sys.stdin.read(1)\n'
    'try: owner.Owner("--logdir", sys.argv[1]).take()\n'
    'except Exception as error: print("refused", flush=True)\n'
    'else: print("taken", flush=True)\n'
    'sys.stdin.read()'
  )
  started = [
    subprocess.Popen(
      [sys.executable, '-c', code, str(tmp_path)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(4)
  ]
  for process in started:
    process.stdin.write('x')
    process.stdin.flush()
  answers = [process.stdout.readline().strip() for process in started]
  for process in started:
    process.communicate()
  assert sorted(answers) == ['refused', 'refused', 'refused', 'taken']


def test_of_two_that_find_it_gone_the_slow_one_gets_nothing(
  tmp_path, monkeypatch
):
  """An fsync on a full file server may take longer than any pause."""
  take(tmp_path).release()
  slow, create = make(tmp_path), disk.create
  fast = []

  def create_late(path, text):
    if not fast:
      fast.append(make(tmp_path))
      fast[0].take()
    return create(path, text)

  monkeypatch.setattr(disk, 'create', create_late)
  with pytest.raises(cli.RunError, match='in use by process'):
    slow.take(pause=Clock(lambda: None))
  fast[0].check()


@pytest.fixture
def both(tmp_path):
  """Two that want to own the same."""
  return [owner.NumberedFile(str(tmp_path / 'owner.json')) for _ in range(2)]


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


def test_the_second_is_refused_and_follows_the_first(folder):
  first = take(folder)
  with pytest.raises(cli.RunError, match='in use by process'):
    take(folder)
  first.check()
  first.release()
  second = take(folder)
  assert second.run == first.run
  assert paths.list_names(f'{folder}/{layout.OWN}') == ['owner.json.00000002']
  second.check()


@pytest.mark.daily
def test_one_that_slept_while_another_took_over_writes_no_more(
  folder, elsewhere, monkeypatch
):
  first = take(folder)
  set_clock_forward(monkeypatch, owner.SILENT_SECS + 10)
  second = take(folder, pause=Clock(lambda: None))
  with pytest.raises(cli.LostError, match='was taken over by process .*: stop'):
    first.check()
  # Its end does not take the folder away from the other.
  first.release()
  second.check()


def test_of_two_that_take_over_at_once_one_has_the_folder(folder):
  take(folder).release()
  both = [
    owner.NumberedFile(layout.own_path(folder, 'owner.json')) for _ in range(2)
  ]
  for file in both:
    assert file.read()['has_ended']
  lives = 'first', 'second'
  taken = [
    file.create({'life': life}) for file, life in zip(both, lives, strict=True)
  ]
  assert taken == [True, False]
  assert [file.read()['life'] for file in both] == ['first', 'first']


def test_what_an_earlier_try_has_got_is_ours(folder, monkeypatch):
  """The disk or the store fails as it is told what the file says."""
  it, list_names = make(folder), paths.list_names

  def fail_once_it_is_there(place):
    names = list_names(place)
    if names:
      raise OSError(errno.EIO, os.strerror(errno.EIO), place)
    return names

  monkeypatch.setattr(paths, 'list_names', fail_once_it_is_there)
  with pytest.raises(cli.PassingError, match='cannot be written: '):
    it.take()
  monkeypatch.setattr(paths, 'list_names', list_names)
  it.take(pause=Clock(lambda: None))
  it.check()
  it.release()
  assert owner.find_living(folder) is None
  assert list_names(f'{folder}/{layout.OWN}') == ['owner.json.00000001']


def test_a_touch_shows_by_the_clock_of_the_store(folder):
  take(folder)
  file = owner.NumberedFile(layout.own_path(folder, 'owner.json'))
  file.read()
  _, silent_secs = file.see_touch()
  assert -1 < silent_secs < 60
  assert paths.list_names(f'{folder}/{layout.OWN}') == ['owner.json.00000001']


def test_where_a_store_ignores_the_condition_the_last_to_write_goes_on(
  tmp_path, monkeypatch
):
  """All that is written is read back, and checked before each save."""
  folder = f'memory://{tmp_path.name}'
  slow, fast = make(folder), make(folder)
  create = paths.create

  def overwrite(url, content):
    paths.write(url, content)
    return paths.read_bytes(url) == content

  def create_late(url, content):
    monkeypatch.setattr(paths, 'create', overwrite)
    fast.take()
    return overwrite(url, content)

  monkeypatch.setattr(paths, 'create', create_late)
  slow.take()
  slow.check()
  with pytest.raises(cli.LostError, match='was taken over by process'):
    fast.check()
  monkeypatch.setattr(paths, 'create', create)
