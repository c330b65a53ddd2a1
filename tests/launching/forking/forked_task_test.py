"""What a forked task finds: its own things, and none of the server's."""

import os
import time

import psutil

from tests.support.forked import start_and_wait


def get_network(process):
  return os.readlink(f'/proc/{process.pid}/ns/net')


def test_a_task_gets_its_own_flags_variables_and_log(server, tmp_path):
  (tmp_path / 'a').write_text('before\n')
  do = '--do=worker0:env=COLOUR,facts'
  for name, env in (('a', {'COLOUR': 'red'}), ('b', {})):
    server.start(name, tmp_path / name, do, **env)
    server.read()
    assert server.read()['code'] == 0
  lines = (tmp_path / 'a').read_text().splitlines()
  assert lines[:2] == ['before', "COLOUR='red'"]
  assert f"argv ['fake_train', '{do}']" in lines
  assert (tmp_path / 'b').read_text().startswith('COLOUR=None\n')


def test_a_task_holds_no_descriptor_of_the_server(server, tmp_path):
  server.start('a', tmp_path / 'a.log', '--do=worker0:forever')
  process = psutil.Process(server.read()['pid'])
  server.start('b', tmp_path / 'b.log')  # once it has ended, a is set up, or
  server.read()  # will be within the deadline below
  server.read()
  deadline = time.monotonic() + 60
  while len(os.listdir(f'/proc/{process.pid}/fd')) != 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_only_who_asks_for_it_is_isolated(nobodys_server):
  tasks = [
    start_and_wait(nobodys_server, name, isolate)
    for name, isolate in (('a', True), ('b', False), ('c', True))
  ]
  networks = [get_network(task) for task in tasks]
  assert networks[0] == networks[2] != networks[1]
  assert networks[1] == get_network(psutil.Process())
  assert [task.uids().real for task in tasks] == [65534] * 3
