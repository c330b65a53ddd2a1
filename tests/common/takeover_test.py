"""takeover: how one of several processes gets a folder."""

import os
import subprocess
import sys

import pytest

from distmnist.common import (
  cli,
  layout,
  numbered_file,
  owner,
  takeover,
)
from distmnist.storage import disk
from tests.support.owners import Clock, be_elsewhere, make, take


def test_the_second_is_refused_with_the_first_ones_name(tmp_path):
  first = take(tmp_path)
  with pytest.raises(cli.RunError) as caught:
    take(tmp_path)
  assert str(caught.value) == (
    f'--logdir={tmp_path} is in use by process {os.getpid()} of host '
    f'{first.me["host"]} since {first.me["since"]}: stop that one, or give '
    'another folder'
  )
  first.check()
  assert os.listdir(tmp_path / 'distmnist') == ['owner.json.00000001']
  assert owner.find_living(str(tmp_path))['life'] == first.me['life']


def test_who_was_killed_here_is_followed_at_once(tmp_path):
  code = (
    'import os, sys; from distmnist.common import owner;'
    'owner.Owner("--logdir", sys.argv[1]).take(); os._exit(9)'
  )
  subprocess.run([sys.executable, '-c', code, str(tmp_path)], check=False)
  found = numbered_file.find(str(tmp_path / 'distmnist' / 'owner.json')).read()
  assert found['pid'] != os.getpid() and not found['has_ended']
  assert take(tmp_path, pause=Clock(lambda: None)).run == found['run']


def test_one_of_another_machine_that_was_silent_long_is_followed(tmp_path):
  take(tmp_path)
  be_elsewhere(tmp_path, takeover.SILENT_SECS + 10)
  looks = Clock(lambda: None)
  take(tmp_path, pause=looks)
  # The clock of the file server may have been set forward since its last touch.
  assert looks.num_looks * takeover._LOOK_SECS > 2 * takeover.TOUCH_SECS


def test_one_that_is_seen_to_touch_has_the_folder_whatever_the_clock_says(
  tmp_path,
):
  take(tmp_path)
  path = be_elsewhere(tmp_path, takeover.SILENT_SECS + 10)
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
  path = be_elsewhere(tmp_path, takeover.SILENT_SECS + 10)

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
  path = tmp_path / 'distmnist' / 'owner.json.00000001'
  path.write_text('{')
  os.utime(path, (1e9, 1e9))
  take(tmp_path, pause=Clock(lambda: None))


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
