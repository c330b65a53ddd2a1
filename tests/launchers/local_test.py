import io
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from distmnist import cli, tasks
from distmnist.launchers import local

TESTS = pathlib.Path(__file__).resolve().parents[1]


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def log(tmp_path):
  return tmp_path / 'worker_0.log'


def append(log, text):
  with open(log, 'a') as file:
    file.write(text)


def test_lines_appear_when_they_are_complete(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'one\ntw')
  screen.update()
  assert out.getvalue() == 'one\n'
  append(log, 'o\n')
  screen.update()
  assert out.getvalue() == 'one\ntwo\n'
  screen.finish()


def test_lines_of_an_earlier_run_are_not_shown(log):
  append(log, 'old\n')
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'new\n')
  screen.finish()
  assert out.getvalue() == 'new\n'


def test_a_last_line_without_its_end_is_shown(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'cut')
  screen.finish()
  assert out.getvalue() == 'cut\n'


def test_steps_share_one_line_of_a_terminal(log):
  out = Terminal()
  screen = local.Screen(log, out)
  append(log, 'start\nstep 1\nstep 2\ndone\n')
  screen.finish()
  assert out.getvalue() == 'start\n\rstep 1\x1b[K\rstep 2\x1b[K\ndone\n'


def test_steps_are_lines_where_there_is_no_terminal(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  append(log, 'step 1\nstep 2\n')
  screen.finish()
  assert out.getvalue() == 'step 1\nstep 2\n'


def test_what_others_say_begins_on_a_line_of_its_own(log):
  out = Terminal()
  screen = local.Screen(log, out)
  append(log, 'step 1\n')
  screen.update()
  screen.close_line()
  assert out.getvalue() == '\rstep 1\x1b[K\n'
  screen.finish()


def test_a_line_left_open_is_closed_at_the_end(log):
  out = Terminal()
  screen = local.Screen(log, out)
  append(log, 'step 1\n')
  screen.finish()
  assert out.getvalue() == '\rstep 1\x1b[K\n'


def test_bytes_that_are_no_text_do_not_stop_the_screen(log):
  out = io.StringIO()
  screen = local.Screen(log, out)
  log.write_bytes(b'\xff\n')
  screen.finish()
  assert out.getvalue() == '\N{REPLACEMENT CHARACTER}\n'


def launch_with_data(do, folder, monkeypatch):
  """Runs a ps and a worker of fake_train, and before them the data's task."""
  monkeypatch.setenv('PYTHONPATH', f'{TESTS.parent}:{TESTS}')
  (folder / 'logs').mkdir()
  flags = [f'--do={do}', f'--folder={folder}']
  hosts = ['127.0.0.1:1'], ['127.0.0.1:2']
  return local.run(
    tasks.make_tasks(*hosts, flags, module='fake_train'),
    f'{folder}/logs',
    data_task=tasks.make_data_task(flags, 'fake_train'),
  )


def test_the_data_is_there_before_the_others_start(tmp_path, monkeypatch):
  do = 'data:touch=got;worker0:gone=data.got,print=hello'
  assert launch_with_data(do, tmp_path, monkeypatch) == 0
  logs = {log.name: log.read_text() for log in (tmp_path / 'logs').iterdir()}
  assert logs == {'ps_0.log': '', 'worker_0.log': 'hello\n'}


def test_without_the_data_nobody_starts(tmp_path, monkeypatch, capsys):
  do = 'data:print=no_mirror,exit=1;worker0:touch=on;ps0:touch=on'
  assert launch_with_data(do, tmp_path, monkeypatch) == 1
  assert os.listdir(tmp_path) == ['logs']
  assert capsys.readouterr().err.splitlines()[1:] == [
    'distmnist.launch: the last lines of data:',
    '  | no mirror',
    'distmnist.launch: error: data (127.0.0.1) failed first: exit code 1;'
    f' log: {tmp_path}/logs/data.log',
  ]


def test_the_data_has_the_network_that_the_others_have_not(tmp_path):
  code = (
    'import sys\n'
    'from distmnist import isolation, tasks\n'
    'from distmnist.launchers import local\n'
    "flags = ['--do=all:interfaces;data:exit=1']\n"
    "hosts = [['127.0.0.1:1'], ['127.0.0.1:2']]\n"
    'cluster = tasks.make_tasks(*hosts, flags, module="fake_train")\n'
    'data = tasks.make_data_task(flags, "fake_train")\n'
    'namespace = isolation.make_namespace()\n'
    'for task in (None, data):\n'
    '  local.run(\n'
    '    cluster, sys.argv[1], namespace=namespace, data_task=task\n'
    '  )\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code, tmp_path],
    env={**os.environ, 'PYTHONPATH': f'{TESTS.parent}:{TESTS}'},
    capture_output=True,
    text=True,
  )
  if 'no network namespace to be had' in done.stderr:
    pytest.skip(done.stderr.splitlines()[-1])
  inside, outside = ['lo'], [name for _, name in socket.if_nameindex()]
  logs = {log.name: log.read_text() for log in tmp_path.iterdir()}
  assert logs == {
    'ps_0.log': f'interfaces {inside}\n',
    'worker_0.log': f'interfaces {inside}\n',
    'data.log': f'interfaces {outside}\n',
  }


def refuse():
  raise OSError('no network namespace to be had: unshare: a test')


def test_auto_says_that_it_isolates(monkeypatch, capsys):
  monkeypatch.setattr(local.isolation, 'make_namespace', lambda: 'made')
  assert local.make_namespace('auto', []) == 'made'
  assert capsys.readouterr().err == (
    'distmnist.launch: the tasks are isolated: they alone can reach their'
    ' ports\n'
  )


def test_auto_says_why_it_does_not_isolate(monkeypatch, capsys):
  monkeypatch.setattr(local.isolation, 'make_namespace', refuse)
  assert local.make_namespace('auto', []) is None
  assert capsys.readouterr().err == (
    'distmnist.launch: the tasks are not isolated (no network namespace to be'
    ' had: unshare: a test): whoever reaches this machine can reach their'
    ' ports\n'
  )


@pytest.mark.parametrize('name', ['logdir', 'data_dir'])
def test_a_remote_folder_is_not_isolated_by_auto(monkeypatch, capsys, name):
  monkeypatch.setattr(local.isolation, 'make_namespace', lambda: 'made')
  flags = [f'--{name}=gs://bucket/a']
  assert local.make_namespace('auto', flags) is None
  said = capsys.readouterr().err
  assert f'not isolated (--{name}=gs://bucket/a needs the network)' in said
  assert local.make_namespace('on', flags) == 'made'


def test_on_fails_where_it_is_not_allowed(monkeypatch):
  monkeypatch.setattr(local.isolation, 'make_namespace', refuse)
  with pytest.raises(
    cli.RunError, match='--isolate=on, but no .*: a test: ask'
  ):
    local.make_namespace('on', [])


FOUR = [f'/dev/nvidia{i}' for i in range(4)] + ['/dev/nvidiactl']


@pytest.mark.parametrize(
  ('wanted', 'visible', 'files', 'expected'),
  [
    ('auto', None, [], None),
    ('auto', None, FOUR, ['0', '1', '2', '3']),
    ('auto', '3,1', FOUR, ['3', '1']),
    ('auto', '', FOUR, None),
    ('2', None, [], ['0', '1']),
    ('1', '3,1', FOUR, ['3']),
    ('0', None, FOUR, []),
  ],
)
def test_gpus_are_found(wanted, visible, files, expected):
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  assert local.find_gpus(wanted, environ, files) == expected


def test_more_gpus_than_this_launcher_may_use_are_refused():
  with pytest.raises(cli.UsageError, match='--gpus=3, but .*=0,1 names 2'):
    local.find_gpus('3', {'CUDA_VISIBLE_DEVICES': '0,1'}, [])
