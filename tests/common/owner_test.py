"""owner: one process writes a folder."""

import json
import os
import subprocess
import sys
import time

import pytest

from distmnist.common import cli, owner, owner_file, takeover
from tests.support.owners import be_elsewhere, make, take


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
  second = take(tmp_path)
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
  (folder / 'owner.json').unlink()
  folder.rmdir()
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
    owner.take_for_launcher(str(logdir))
  assert [path.name for path in logdir.iterdir()] == ['owner.json']
  chief.release()
  owner.take_for_launcher(str(logdir))
  # Its chief has a file of its own; and it may launch once more.
  take(logdir)
  owner.take_for_launcher(str(logdir))


def test_of_two_launchers_the_second_is_refused(tmp_path):
  code = (
    'import sys; from distmnist.common import owner;'
    'owner.take_for_launcher(sys.argv[1]); print("taken", flush=True);'
    'sys.stdin.read()'
  )
  with subprocess.Popen(
    [sys.executable, '-c', code, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as other:
    assert other.stdout.readline() == 'taken\n'
    with pytest.raises(cli.RunError, match=f'in use by process {other.pid} '):
      owner.take_for_launcher(str(tmp_path))
    other.communicate()
  assert json.loads((tmp_path / 'launcher.json').read_text())['has_ended']
  owner.take_for_launcher(str(tmp_path))


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
  path = tmp_path / 'launcher.json'
  me = owner_file.describe_self() | {'machine': 'another', 'pid': 1}
  path.write_text(json.dumps(me))
  os.utime(path, (time.time() - age,) * 2)
  assert owner.has_launcher(str(tmp_path)) == is_there
