"""files: whole files, no link followed, folders of one's own."""

import errno
import os
import stat
import subprocess
import sys
import types

import pytest

from distmnist.common import files

KILLED_WHILE_IT_WRITES = (
  'import os, signal, sys\n'
  'from distmnist.common import files\n'
  'with files.replacing(sys.argv[1]) as file:\n'
  '  file.write("half"); os.kill(os.getpid(), signal.SIGKILL)'
)


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('old')
  with files.replacing(str(path)) as file:
    file.write('new\n')
    assert path.read_text() == 'old'
  assert path.read_text() == 'new\n'
  assert os.listdir(tmp_path) == ['report.json']


def test_what_cannot_be_written_whole_is_not_written(tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('old')
  with pytest.raises(ZeroDivisionError), files.replacing(str(path)) as file:
    file.write('new')
    raise ZeroDivisionError
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['report.json']


def test_a_link_under_its_name_is_replaced_and_not_followed(tmp_path):
  victim = tmp_path / 'victim'
  victim.write_text('precious')
  path = tmp_path / 'report.json'
  path.symlink_to(victim)
  with files.replacing(str(path), 'wb') as file:
    file.write(b'new')
  assert victim.read_text() == 'precious'
  assert path.read_bytes() == b'new' and not path.is_symlink()


def test_its_mode_is_that_of_any_file(tmp_path):
  before = os.umask(0o027)
  try:
    with files.replacing(str(tmp_path / 'a')):
      pass
  finally:
    os.umask(before)
  assert stat.S_IMODE(os.stat(tmp_path / 'a').st_mode) == 0o640


def test_no_follow_refuses_a_link(tmp_path):
  (tmp_path / 'link').symlink_to(tmp_path / 'victim')
  with pytest.raises(OSError, match='is a link'):
    files.no_follow(tmp_path / 'link', os.O_CREAT)
  assert not (tmp_path / 'victim').exists()
  with open(tmp_path / 'log', 'a', opener=files.no_follow) as file:
    file.write('line\n')
  assert (tmp_path / 'log').read_text() == 'line\n'


def test_a_private_folder_is_made_and_found_again(tmp_path):
  folder = tmp_path / 'own'
  for _ in range(2):
    files.make_private(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
  'prepare, problem',
  [
    (lambda path: path.symlink_to('/'), 'is a link'),
    (lambda path: path.write_text(''), 'is not a folder'),
    (lambda path: (path.mkdir(), path.chmod(0o777)), 'lets others write'),
  ],
)
def test_a_folder_that_others_have_prepared_is_refused(
  tmp_path, prepare, problem
):
  prepare(tmp_path / 'own')
  with pytest.raises(PermissionError, match=problem):
    files.make_private(str(tmp_path / 'own'))


def test_a_private_file_is_there_for_a_while_and_ours_alone(tmp_path):
  (tmp_path / 'victim').write_text('precious')
  path = tmp_path / 'secret'
  path.symlink_to(tmp_path / 'victim')
  with files.private_file(str(path), 'hunter2'):
    assert path.read_text() == 'hunter2'
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
  assert os.listdir(tmp_path) == ['victim']
  assert (tmp_path / 'victim').read_text() == 'precious'


@pytest.mark.skipif(
  os.geteuid() != 0, reason='only root can give a folder away'
)
def test_the_folder_of_another_user_is_refused(tmp_path, logged):
  (tmp_path / 'own').mkdir(mode=0o700)
  os.chown(tmp_path / 'own', 12345, 12345)
  with pytest.raises(PermissionError, match='another user .uid 12345'):
    files.make_private(str(tmp_path / 'own'))
  files.warn_of_owner('logdir', str(tmp_path / 'own'))
  files.warn_of_owner('logdir', str(tmp_path))
  assert logged == [
    f'--logdir={tmp_path}/own belongs to another user (uid 12345), who can'
    ' change all that is in it'
  ]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
  path = str(tmp_path / 'report.json')
  with pytest.raises(OSError) as caught, files.replacing(path) as file:
    file.write('new')
    os.dup2(os.open('/dev/full', os.O_WRONLY), file.fileno())
  assert caught.value.filename == path


def test_what_is_in_the_way_of_a_file_is_named(tmp_path):
  assert files.find_obstacle(f'{tmp_path}/x') is None
  assert files.find_obstacle(str(tmp_path)) == 'it is a folder'
  there_is_none = f'there is no folder {tmp_path}/a'
  assert files.find_obstacle(f'{tmp_path}/a/x') == there_is_none


def test_a_disk_is_full_once_it_has_no_blocks(monkeypatch, tmp_path):
  assert not files.is_full(tmp_path)
  assert not files.is_full(tmp_path / 'none')
  assert not files.is_full('/proc')  # It has none to begin with.
  found = types.SimpleNamespace(f_blocks=9, f_bavail=0)
  monkeypatch.setattr(files.os, 'statvfs', lambda folder: found)
  assert files.is_full(tmp_path)


def test_a_refusal_says_what_to_do():
  def describe(code):
    return files.describe_refusal(OSError(code, os.strerror(code)), 'ask')

  assert describe(errno.EACCES) == 'Permission denied; ask'
  assert describe(errno.ENOSPC) == 'No space left on device; make room there'


@pytest.mark.parametrize(
  ('code', 'remedy'),
  [
    (errno.EDQUOT, 'make room there, or '),
    (errno.EROFS, 'make it writable, or '),
    (errno.EIO, ''),
  ],
)
def test_what_helps_depends_on_why_a_write_failed(code, remedy):
  reason = f'/logs/model.ckpt-1; {os.strerror(code)}'
  assert files.advise(reason) == f'{remedy}give another --logdir'


def test_a_name_is_given_once(tmp_path):
  path = tmp_path / 'owner'
  assert files.create(str(path), 'first')
  assert not files.create(str(path), 'second')
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
  assert files.create(str(tmp_path / 'owner'), 'text')


def test_on_a_full_disk_no_draft_of_a_new_file_is_left(tmp_path, monkeypatch):
  def fail(fd):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(files.os, 'fsync', fail)
  with pytest.raises(OSError, match='No space'):
    files.create(str(tmp_path / 'owner'), 'text')
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
  with files.replacing(path):
    files.remove_abandoned(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 4
  assert sorted(os.listdir(tmp_path)) == [new, *mine, 'report.json']


def test_what_is_written_is_read(tmp_path):
  path = str(tmp_path / 'x.json')
  files.write_json(path, {'a': [1, None, 'é']})
  assert files.read_json(path) == {'a': [1, None, 'é']}
  with pytest.raises(TypeError):
    files.write_json(path, {'a': {1}})
  assert files.read_json(path)['a'][0] == 1
  assert [p.name for p in tmp_path.iterdir()] == ['x.json']


def test_what_is_no_json_is_an_error(tmp_path):
  (tmp_path / 'x').write_text('{')
  with pytest.raises(ValueError):
    files.read_json(str(tmp_path / 'x'))
