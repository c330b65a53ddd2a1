"""owner_file: what a file says of a process, and whether it lives."""

import errno
import os
import subprocess
import sys

import pytest

from distmnist.common import owner_file


def test_this_process_is_alive_here():
  found = owner_file.describe_self('a run')
  assert (found['pid'], found['run']) == (os.getpid(), 'a run')
  assert owner_file.is_alive_here(found)
  assert not owner_file.is_known_dead(found)
  assert owner_file.describe(found) == (
    f'process {os.getpid()} of host {found["host"]} since {found["since"]}'
  )


def test_each_life_has_another_name():
  first, second = owner_file.describe_self(), owner_file.describe_self()
  assert first['life'] != second['life']
  assert first['run'] != second['run']


def test_a_process_that_has_ended_is_known_dead():
  with subprocess.Popen([sys.executable, '-c', '']) as process:
    process.wait()
  found = owner_file.describe_self() | {'pid': process.pid}
  assert owner_file.is_known_dead(found)
  assert not owner_file.is_alive_here(found)


@pytest.mark.parametrize('fields', [{'start': '1'}, {'has_ended': True}])
def test_a_process_id_of_another_process_is_a_dead_one(fields):
  found = owner_file.describe_self() | fields
  assert owner_file.is_known_dead(found)
  assert not owner_file.is_alive_here(found)


@pytest.mark.parametrize('found', [{}, {'machine': 'another', 'pid': 1}])
def test_of_another_machine_nothing_is_known(found):
  assert not owner_file.is_known_dead(found)
  assert not owner_file.is_alive_here(found)


def test_what_was_written_is_read_and_linked_once(tmp_path):
  path = str(tmp_path / 'owner.json')
  assert owner_file.read(path) is None
  new, time = owner_file.write_beside(path, {'pid': 7})
  assert time == os.stat(new).st_mtime
  assert owner_file.link(new, path)
  assert not owner_file.link(new, path)
  assert owner_file.read(path) == {'pid': 7}


def test_without_hard_links_a_name_is_given_once(tmp_path, monkeypatch):
  def link(source, target):
    raise OSError(1, 'Operation not permitted')

  monkeypatch.setattr(os, 'link', link)
  path = str(tmp_path / 'owner.json')
  new, _ = owner_file.write_beside(path, {'pid': 7})
  assert owner_file.link(new, path)
  assert not owner_file.link(new, path)
  assert owner_file.read(path) == {'pid': 7}


@pytest.mark.parametrize('text', ['', '{', '"x"'])
def test_a_damaged_file_says_nothing(tmp_path, text):
  path = tmp_path / 'owner.json'
  path.write_text(text)
  assert owner_file.read(path) == {}


def test_on_a_full_disk_nothing_is_left_beside_it(tmp_path, monkeypatch):
  path = str(tmp_path / 'owner.json')
  owner_file.OwnerFile(path).create({'pid': 7})

  def fail(fd):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(owner_file.os, 'fsync', fail)
  with pytest.raises(OSError, match='No space'):
    owner_file.OwnerFile(path).replace({'pid': 8})
  assert os.listdir(tmp_path) == ['owner.json']
  assert owner_file.read(path) == {'pid': 7}
