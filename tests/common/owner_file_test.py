"""owner_file: what a file says of a process, and whether it lives."""

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


def test_a_file_that_cannot_be_read_yet_names_nobody():
  assert 'None' not in owner_file.describe({})
