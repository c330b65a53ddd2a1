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

from distmnist.common import (
  cli,
  layout,
  numbered_file,
  owner,
  owner_file,
  takeover,
)
from tests.support.background import wait_until
from tests.support.owners import Clock, be_elsewhere, make, take


def hold(folder):
  """Returns the context of a launcher that owns the folder."""
  return owner.held_by_launcher(str(folder), on_loss=None)


def test_who_has_ended_leaves_the_folder_and_the_name_of_the_run(tmp_path):
  first = take(tmp_path)
  first.release()
  assert owner.find_living(str(tmp_path)) is None
  second = take(tmp_path)
  assert second.run == first.run
  assert second.me['life'] != first.me['life']
  second.release()
  assert take(tmp_path, is_new_run=True).run != first.run


def test_who_was_replaced_learns_it_before_it_writes(tmp_path):
  first = take(tmp_path)
  be_elsewhere(tmp_path, takeover.SILENT_SECS + 10)
  second = take(tmp_path, pause=Clock(lambda: None))
  with pytest.raises(cli.LostError, match='was taken over by process .*: stop'):
    first.check()
  second.check()
  # Its end does not take the folder away from the other.
  first.release()
  second.check()
  assert owner.find_living(str(tmp_path))


def test_a_folder_that_was_removed_is_made_again_out_loud(tmp_path, logged):
  folder, told = tmp_path / 'run', []
  folder.mkdir()
  first = make(folder)
  first.take()
  first.keep(on_loss=None, on_removed=lambda: told.append(True))
  shutil.rmtree(folder)
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
  assert os.listdir(logdir / 'distmnist') == ['owner.json.00000001']
  chief.release()
  with hold(logdir):
    # Its chief has a file of its own.
    take(logdir).release()
  with hold(logdir):  # It may launch once more.
    pass


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
  [path] = (tmp_path / 'distmnist').iterdir()
  assert json.loads(path.read_text())['has_ended']
  with hold(tmp_path):
    pass


def test_a_launcher_has_the_folder_as_long_as_its_run(tmp_path, monkeypatch):
  """A notebook lives on: others may launch there, or remove the folder."""
  monkeypatch.setattr(takeover, 'TOUCH_SECS', 0.001)
  folder = tmp_path / 'run'
  with hold(folder):
    assert owner.has_launcher(str(folder))
  assert not owner.has_launcher(str(folder))
  before = threading.active_count()
  with hold(folder):
    folder.rename(tmp_path / 'elsewhere')
    wait_until(folder.exists, lambda: 'not made again')
  shutil.rmtree(folder)
  wait_until(lambda: threading.active_count() <= before, lambda: 'a thread')
  assert not folder.exists()


def test_a_launcher_learns_at_once_that_it_has_lost_the_folder(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(takeover, 'TOUCH_SECS', 0.001)
  lost = queue.SimpleQueue()
  with owner.held_by_launcher(str(tmp_path), lost.put):
    # Of another machine, which believes that this one is gone.
    other = owner_file.describe_self() | {'host': 'b'}
    text = json.dumps(other)
    (tmp_path / 'distmnist' / 'launcher.json.00000002').write_text(text)
    said = str(lost.get(timeout=20))
  assert said == (
    f'--logdir={tmp_path} was taken over by process {os.getpid()} of host b '
    f'since {other["since"]}: stopping the tasks of this launch'
  )
  assert (tmp_path / 'distmnist' / 'launcher.json.00000002').read_text() == text


@pytest.mark.parametrize('is_remote', [False, True])
def test_a_touch_under_way_does_not_undo_the_end(
  tmp_path, monkeypatch, is_remote
):
  """The next owner, of another host, would wait for half a minute."""
  monkeypatch.setattr(takeover, 'TOUCH_SECS', 0.001)
  owner_ = take(tmp_path)
  if is_remote:
    file = MadeByWriting(str(tmp_path / 'distmnist' / 'owner.json'))
    file._highest = file._mine = 1
    owner_._file = file
  begun, goes_on = threading.Event(), threading.Event()
  touch = owner_._file.touch

  def touch_slowly(found):
    found = dict(found)
    begun.set()
    goes_on.wait(20)
    touch(found)

  monkeypatch.setattr(owner_._file, 'touch', touch_slowly)
  owner_.keep(on_loss=None, on_removed=None)
  assert begun.wait(20)
  ending = threading.Thread(target=owner_.release)
  ending.start()
  goes_on.set()
  ending.join(20)
  [path] = (tmp_path / 'distmnist').iterdir()
  assert json.loads(path.read_text())['has_ended']


class MadeByWriting(numbered_file.NumberedFile):
  """Touched as an object of a store is: by writing it once more."""

  def touch(self, found):
    self.rewrite(found)


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
  path = tmp_path / 'distmnist' / 'launcher.json.00000001'
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
