"""disk: whole files, and no link followed."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from distmnist.storage import disk

KILLED_WHILE_IT_WRITES = (
  'import os, signal, sys\n'
  'from distmnist.storage import disk\n'
  'with disk.replacing(sys.argv[1]) as file:\n'
  '  file.write("half"); os.kill(os.getpid(), signal.SIGKILL)'
)


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('old')
  with disk.replacing(str(path)) as file:
    file.write('new\n')
    assert path.read_text() == 'old'
  assert path.read_text() == 'new\n'
  assert os.listdir(tmp_path) == ['report.json']


def test_what_cannot_be_written_whole_is_not_written(tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('old')
  with pytest.raises(ZeroDivisionError), disk.replacing(str(path)) as file:
    file.write('new')
    raise ZeroDivisionError
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['report.json']


def test_a_link_under_its_name_is_replaced_and_not_followed(tmp_path):
  victim = tmp_path / 'victim'
  victim.write_text('precious')
  path = tmp_path / 'report.json'
  path.symlink_to(victim)
  with disk.replacing(str(path), 'wb') as file:
    file.write(b'new')
  assert victim.read_text() == 'precious'
  assert path.read_bytes() == b'new' and not path.is_symlink()


def test_its_mode_is_that_of_any_file(tmp_path):
  before = os.umask(0o027)
  try:
    with disk.replacing(str(tmp_path / 'a')):
      pass
  finally:
    os.umask(before)
  assert stat.S_IMODE(os.stat(tmp_path / 'a').st_mode) == 0o640


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
  path = str(tmp_path / 'report.json')
  with pytest.raises(OSError) as caught, disk.replacing(path) as file:
    file.write('new')
    os.dup2(os.open('/dev/full', os.O_WRONLY), file.fileno())
  assert caught.value.filename == path


def test_a_name_is_given_once(tmp_path):
  path = tmp_path / 'owner'
  assert disk.create(str(path), b'first')
  assert not disk.create(str(path), b'second')
  assert path.read_text() == 'first' and os.listdir(tmp_path) == ['owner']


def test_without_hard_links_a_name_is_given_once(tmp_path, monkeypatch):
  def link(source, target):
    raise OSError(errno.EPERM, 'Operation not permitted')

  monkeypatch.setattr(os, 'link', link)
  test_a_name_is_given_once(tmp_path)


def test_a_name_is_ours_if_only_the_answer_was_lost(tmp_path, monkeypatch):
  """NFS asks again, and is told that the name is there: it made it."""
  link = os.link

  def link_and_lose_the_answer(source, target):
    link(source, target)
    raise FileExistsError(errno.EEXIST, 'File exists')

  monkeypatch.setattr(os, 'link', link_and_lose_the_answer)
  assert disk.create(str(tmp_path / 'owner'), b'text')


def test_on_a_full_disk_no_draft_of_a_new_file_is_left(tmp_path, monkeypatch):
  def fail(fd):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(disk.os, 'fsync', fail)
  with pytest.raises(OSError, match='No space'):
    disk.create(str(tmp_path / 'owner'), b'text')
  assert os.listdir(tmp_path) == []


def test_the_draft_of_a_killed_process_is_removed_and_no_other(tmp_path):
  path = str(tmp_path / 'report.json')
  argv = [sys.executable, '-c', KILLED_WHILE_IT_WRITES, path]
  assert subprocess.run(argv).returncode == -9
  assert len(os.listdir(tmp_path)) == 1
  # Of another machine.
  old, new = (f'{x}.01234567-1-1-89abcdef.new' for x in 'ab')
  mine = ['mine.2024.new', 'mine.new']
  for name in (old, new, *mine):
    (tmp_path / name).write_text('')
  for name in (old, *mine):
    os.utime(tmp_path / name, (1e9, 1e9))
  with disk.replacing(path):
    disk.remove_abandoned(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 4
  assert sorted(os.listdir(tmp_path)) == [new, *mine, 'report.json']
