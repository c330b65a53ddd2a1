"""files: whole files, no link followed, folders of one's own."""

import errno
import os
import stat
import types

import pytest

from distmnist.common import files


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
