"""The command as users run it, with support/fake_train.py in train's place."""

import concurrent.futures
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from distmnist.common import ports, signals
from distmnist.common.names import TRAIN
from distmnist.launching import network_namespace, run_tasks
from distmnist.launching.forking import fork_client
from tests.support.background import (
  PIDS,
  Running,
  assert_gone,
  assert_ps_left_last,
  last_line,
  wait_until,
)
from tests.support.paths import PYTHONPATH

pytestmark = pytest.mark.usefixtures('heed_signals')
BOTH = pytest.mark.parametrize(
  'mode',
  ['--fork_tasks', pytest.param('--nofork_tasks', marks=pytest.mark.slow)],
)
BOTH_EACH_WAY = pytest.mark.parametrize(
  ('mode', 'isolate'),
  [
    ('--fork_tasks', '--isolate=on'),
    ('--fork_tasks', '--isolate=off'),
    ('--nofork_tasks', '--isolate=on'),
  ],
)


def make_env(**variables):
  env = {k: v for k, v in os.environ.items() if not k.lower().endswith('proxy')}
  env.pop('CUDA_VISIBLE_DEVICES', None)
  path = PYTHONPATH
  return {**env, 'PYTHONPATH': path, **variables}


def make_command(
  do, folder, *flags, train_flags=(), program=('-m', 'distmnist.launch')
):
  return [
    *(sys.executable, *program, '--module=fake_train'),
    *(f'--logs_dir={folder}/logs', *flags, '--'),
    *(f'--do={do}', f'--folder={folder}', *train_flags),
  ]


def patched(module, constant, value):
  """Returns launch as a program with another constant, for make_command."""
  return '-c', (
    f'from distmnist import launch; import distmnist.launching.{module} as m;'
    f' m.{constant} = {value}; launch.run()'
  )


def run_launch(do, folder, *flags, program=None, **variables):
  """Returns what came of a launch; the lines about pids are in `pids`."""
  how = {'program': program} if program else {}
  done = subprocess.run(
    make_command(do, folder, *flags, **how),
    env=make_env(**variables),
    capture_output=True,
    text=True,
    timeout=200,
  )
  done.pids = PIDS.findall(done.stderr)
  done.stderr = PIDS.sub('', done.stderr)
  return done


def assert_error(done, code, pattern):
  """The last line must be an error that matches `pattern`, a regex."""
  assert done.returncode == code
  said = last_line(done.stderr)
  assert re.fullmatch(f'distmnist.launch: error: {pattern}', said), said


def start_launch(do, folder, *flags, **how):
  command = make_command(do, folder, *flags, **how)
  return Running(folder, command, env=make_env())


@pytest.fixture(scope='module')
def _why_not_isolated():
  code = (
    'from distmnist.launching import network_namespace;'
    'network_namespace.make_namespace()'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], env=make_env(), capture_output=True, text=True
  )
  return last_line(done.stderr) if done.returncode else ''


@pytest.fixture(autouse=True)
def skip_where_namespaces_are_not_allowed(request, _why_not_isolated):
  wants = getattr(request.node, 'callspec', None)
  wants = wants and wants.params.get('isolate') == '--isolate=on'
  if wants and _why_not_isolated:
    pytest.skip(_why_not_isolated)


ROLE = {'TF_CONFIG': '{"cluster": {"chief": ["a:1"]}}', 'DISTMNIST_NUM_PS': '1'}


@pytest.mark.slow
@BOTH
def test_a_clean_run_shows_the_chief_and_each_task_has_what_is_its_own(
  tmp_path, mode
):
  """Session, signals, GPU, port and numbers; and no role of the launcher's."""
  own = 'env=CUDA_VISIBLE_DEVICES,env=TF_CONFIG,env=DISTMNIST_NUM_PS,serve'
  done = run_launch(
    f'worker0:facts;all:{own},count=3;worker:random',
    *(tmp_path, mode, '--isolate=off'),
    *('--num_ps=2', '--num_workers=3', '--gpus=2'),
    **ROLE,
  )
  assert (done.returncode, done.stderr) == (
    0,
    'distmnist.launch: 2 ps and 3 workers on this machine,'
    f' logs in {tmp_path}/logs\n',
  )
  logs = {p.stem: p.read_text() for p in (tmp_path / 'logs').iterdir()}
  assert done.stdout == logs['worker_0']
  lines = {name: text.splitlines() for name, text in logs.items()}
  facts, lines['worker_0'] = lines['worker_0'][:5], lines['worker_0'][5:]
  assert facts[:2] == ['sid True', 'stdin /dev/null']
  assert '--inter_op_parallelism_threads=2' in facts[2]
  # A process of its own that imports distmnist ends at once by Ctrl-C.
  on_ctrl_c = int(signal.SIG_DFL)
  if mode == '--fork_tasks':
    on_ctrl_c = signal.default_int_handler
  assert facts[3:] == [
    f'sigint {on_ctrl_c}',
    f'sigterm {int(signal.SIG_DFL)}',
  ]
  ports, draws = set(), set()
  for name, device in [
    *(('ps_0', ''), ('ps_1', '')),
    *(('worker_0', '0'), ('worker_1', '1'), ('worker_2', '0')),
  ]:
    found = lines.pop(name)
    assert found[:4] == [
      f"CUDA_VISIBLE_DEVICES='{device}'",
      *('TF_CONFIG=None', 'DISTMNIST_NUM_PS=None', 'the port was held'),
    ]
    ports.add(found[4])
    task = name.replace('_', '')
    assert found[5:8] == [f'{task} line {i}' for i in range(3)]
    draws.update(found[8:])
  assert not lines
  assert all(port.startswith('serving on ') for port in ports)
  assert (len(ports), len(draws)) == (5, 3)


@pytest.mark.slow
def test_the_run_goes_on_without_a_worker_that_is_lost_for_good(tmp_path):
  do = 'worker0:wait=go;ps:wait=go;worker1:kill=9;worker2:wait=go'
  flags = ('--min_workers=2', '--num_workers=3')
  with start_launch(do, tmp_path, *flags) as done:
    done.wait_for_words('killed by SIGKILL')
    (tmp_path / 'go').touch()
    assert done.process.wait(60) == 0, done.stderr.read_text()
  assert re.search(
    r'worker 1 .* killed by SIGKILL: the run goes on without it, with 2 '
    r'workers \(--min_workers=2\)$',
    done.stderr.read_text(),
    re.M,
  )


@pytest.mark.slow
def test_the_logs_that_nobody_asked_for_go_with_a_good_run(tmp_path):
  (tmp_path / 'tmp').mkdir()
  command = make_command('worker0:exit=0', tmp_path)
  command = [word for word in command if not word.startswith('--logs_dir')]
  for action, code in ('exit=0', 0), ('exit=3', 3):
    command[-2] = f'--do=worker0:{action}'
    env = make_env(TMPDIR=str(tmp_path / 'tmp'))
    done = subprocess.run(command, env=env, capture_output=True)
    assert done.returncode == code
    assert len(os.listdir(tmp_path / 'tmp')) == (1 if code else 0)


@pytest.mark.daily(but=['--fork_tasks'])
@pytest.mark.slow
@BOTH
def test_the_first_failure_is_last_on_the_screen_and_ends_the_others(
  tmp_path, mode
):
  done = run_launch(
    'ps0:leave;worker0:leave;'
    'worker1:wait=worker0.ready,wait=ps0.ready,count=12,exit=3',
    tmp_path,
    mode,
  )
  assert done.returncode == 3
  *_, header, last = [
    line for line in done.stderr.splitlines() if not line.startswith('  | ')
  ]
  assert header == 'distmnist.launch: the last lines of worker 1:'
  assert re.fullmatch(
    r'distmnist.launch: error: worker 1 \(127.0.0.1:\d+\) failed first: '
    rf'exit code 3; log: {tmp_path}/logs/worker_1.log',
    last,
  )
  assert re.findall(r'  \| (.*)', done.stderr) == [
    f'worker1 line {i}' for i in range(2, 12)
  ]
  assert last_line(done.stderr) == last
  for task in ('worker_0', 'ps_0'):
    log = tmp_path / 'logs' / f'{task}.log'
    assert log.read_text() == f'leaving on {signal.SIGTERM.value}\n'


@pytest.mark.slow
def test_a_task_killed_from_outside_is_named_by_its_signal(tmp_path):
  with start_launch(
    'worker0:leave;worker1:touch=on,forever', tmp_path
  ) as running:
    (victim, _) = running.wait_for('worker1.on', 'worker0.ready')
    everything = running.all_processes()
    victim.kill()
    assert running.process.wait(60) == 137
    assert 'failed first: killed by SIGKILL' in running.stderr.read_text()
    assert_gone(everything, 10)


@pytest.mark.slow
def test_what_a_task_has_started_ends_with_it(tmp_path):
  do = 'worker0:child,touch=on,wait=go;worker1:leave'
  with start_launch(do, tmp_path) as running:
    running.wait_for('worker0.on', 'worker1.ready')
    (child,) = running.wait_for('worker0.child')
    (tmp_path / 'go').touch()
    # The run goes on, so it is not its end that ends the child.
    assert_gone([child], 30)
    running.send(signal.SIGTERM)
    assert running.process.wait(60) == 143


@pytest.mark.slow
def test_a_chief_that_could_not_save_is_named_last(tmp_path):
  with start_launch('worker0:lose;worker:leave;ps:leave', tmp_path) as running:
    running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    running.send(signal.SIGTERM)
    assert running.process.wait(60) == 75
  assert 'step 9 is not saved' in last_line(running.stderr.read_text())


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_reaches_every_process_has_the_tasks_save(tmp_path, signum):
  do = 'worker:save;ps:save'
  with start_launch(do, tmp_path) as running:
    running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    everything = running.all_processes()
    running.send(signum)
    for process in everything:
      process.send_signal(signum)
    assert running.process.wait(60) == 128 + signum
    assert_gone(everything, 10)
  assert f'stopped by {signum.name}' in last_line(running.stderr.read_text())
  for name in ('worker_0', 'worker_1', 'ps_0'):
    log = tmp_path / 'logs' / f'{name}.log'
    assert log.read_text().splitlines()[-1] == 'saved'


@pytest.mark.slow
@pytest.mark.parametrize(
  ('do', 'signums', 'code'),
  [
    ('worker:leave;ps:leave', [signal.SIGHUP, signal.SIGHUP], 129),
    # As after `launch & disown`.
    ('all:touch=ready,wait=go,print=on', [], 0),
  ],
)
def test_a_terminal_that_closes_ends_no_run_by_itself(
  tmp_path, do, signums, code
):
  ours, theirs = os.openpty()
  process = subprocess.Popen(
    make_command(do, tmp_path, '--live_table=off'),
    **{'stdin': theirs, 'stdout': theirs, 'stderr': theirs},
    env=make_env(),
    start_new_session=True,
  )
  os.close(theirs)
  try:
    names = ('worker0', 'worker1', 'ps0')
    files = [tmp_path / f'{name}.ready' for name in names]
    wait_until(lambda: all(f.exists() for f in files), lambda: 'not ready')
    os.close(ours)
    for signum in signums:  # The shell sends one, the kernel another.
      process.send_signal(signum)
    (tmp_path / 'go').touch()
    assert process.wait(60) == code
  finally:
    process.kill()
    process.wait()
  said = 'on' if code == 0 else f'leaving on {signal.SIGTERM.value}'
  for name in ('worker_0', 'worker_1', 'ps_0'):
    log = tmp_path / 'logs' / f'{name}.log'
    assert log.read_text() == f'{said}\n'


@pytest.mark.daily(
  but=['--fork_tasks---isolate=on-2-2', '--nofork_tasks---isolate=off-2-2']
)
@pytest.mark.slow
@pytest.mark.parametrize(
  ('mode', 'isolate', 'sent', 'passed_on'),
  [
    ('--fork_tasks', '--isolate=on', signal.SIGINT, signal.SIGINT),
    ('--fork_tasks', '--isolate=off', signal.SIGTERM, signal.SIGTERM),
    ('--nofork_tasks', '--isolate=on', signal.SIGHUP, signal.SIGTERM),
    ('--nofork_tasks', '--isolate=off', signal.SIGINT, signal.SIGINT),
    ('--fork_tasks', '--isolate=off', signal.SIGUSR1, signal.SIGTERM),
  ],
)
def test_a_signal_is_passed_on_to_the_workers_then_to_the_ps(
  tmp_path, mode, isolate, sent, passed_on
):
  do = 'worker:leave;ps:leave'
  with start_launch(do, tmp_path, mode, isolate) as running:
    running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    everything = running.all_processes()
    running.send(sent)
    assert running.process.wait(60) == 128 + sent
    assert_gone(everything, 10)
  said = last_line(running.stderr.read_text())
  assert f'stopped by {sent.name}' in said
  for name in ('worker_0', 'worker_1', 'ps_0'):
    log = tmp_path / 'logs' / f'{name}.log'
    assert log.read_text() == f'leaving on {passed_on.value}\n'
  assert_ps_left_last(tmp_path)


@pytest.mark.slow
def test_a_second_signal_kills_at_once(tmp_path):
  deaf = 'deaf,touch=deaf,forever'
  do = f'worker0:leave;worker1:{deaf};ps0:{deaf}'
  with start_launch(do, tmp_path) as running:
    chief, *_ = running.wait_for('worker0.ready', 'worker1.deaf', 'ps0.deaf')
    everything = running.all_processes()
    running.send(signal.SIGINT)
    assert_gone([chief])
    time.sleep(signals.ONE_KEY_SECS)  # Sooner, it would be the same Ctrl-C.
    running.send(signal.SIGINT)
    # The first signal alone would have had them killed after 8.5 s.
    assert running.process.wait(8) == 130
    assert_gone(everything, 10)
    assert 'worker 1' in running.stderr.read_text()


DEAF = 'all:deaf,touch=deaf,forever'


@pytest.mark.daily(
  but=['--fork_tasks---isolate=on', '--nofork_tasks---isolate=on']
)
@pytest.mark.slow
@BOTH_EACH_WAY
def test_a_launcher_killed_by_9_leaves_nothing_behind(tmp_path, mode, isolate):
  do = 'worker0:leave;worker1:touch=on,forever;ps:leave'
  with start_launch(do, tmp_path, mode, isolate) as running:
    running.wait_for('worker0.ready', 'worker1.on', 'ps0.ready')
    everything = running.all_processes()
    assert len(everything) == 4
    running.process.kill()
    assert_gone(everything, 30)


@pytest.mark.daily
@pytest.mark.slow
def test_even_the_deaf_go_after_a_launcher_killed_by_9(tmp_path):
  soon = ['--stop_grace_secs=2']
  with start_launch(DEAF, tmp_path, train_flags=soon) as running:
    running.wait_for('worker0.deaf', 'worker1.deaf', 'ps0.deaf')
    everything = running.all_processes()
    running.process.kill()
    assert_gone(everything, 50)


# Tasks that outlast the others, which is waited for: all launches at once.
LEAVE_SECS = 2
STAYING = {
  'ps': ['ps0:leave'],
  'worker': ['worker1:leave', '--max_restarts=1'],
  'restarted': [
    'worker1@1:kill=9;worker1@2:leave=again;worker0:wait=worker1.again;'
    'ps0:leave',
    '--max_restarts=1',
  ],
}


def stop_the_deaf(folder):
  """Returns what is said by a launch whose tasks ignore its signal."""
  soon = ['--stop_grace_secs=2']
  with start_launch(DEAF, folder, train_flags=soon) as running:
    running.wait_for('worker0.deaf', 'worker1.deaf', 'ps0.deaf')
    everything = running.all_processes()
    running.send(signal.SIGTERM)
    assert running.process.wait(60) == 75
    assert_gone(everything, 10)
  return running.stderr.read_text()


@pytest.mark.slow
def test_who_is_deaf_is_killed_and_who_stays_after_the_others_is_stopped(
  tmp_path,
):
  folders = {name: tmp_path / name for name in (*STAYING, 'deaf')}
  program = patched('run_tasks', 'LEAVE_SECS', LEAVE_SECS)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    for folder in folders.values():
      folder.mkdir()
    deaf = pool.submit(stop_the_deaf, folders['deaf'])
    ended = {
      name: pool.submit(run_launch, do, folders[name], *flags, program=program)
      for name, (do, *flags) in STAYING.items()
    }
  # The ps is told once they are gone: its end costs nothing, and has no line.
  assert re.findall(
    r'(\w+ \d) \(.*did not exit after SIGTERM', deaf.result()
  ) == ['worker 0', 'worker 1']
  # The training is complete: it is no failure.
  for name, after, *late in (
    ('ps', 'the last worker', 'ps 0'),
    ('worker', 'worker 0', 'worker 1'),
    ('restarted', 'worker 0', 'ps 0', 'worker 1'),
  ):
    done = ended[name].result()
    assert done.returncode == 0, done.stderr
    said = [s for s in done.stderr.splitlines() if 'still ran' in s]
    for line, who in zip(said, late, strict=True):
      log = f'{folders[name]}/logs/{who.replace(" ", "_")}.log'
      assert re.sub(r' \(.*?\)', '', line) == (
        f'distmnist.launch: {who} still ran {LEAVE_SECS} s after {after} had'
        f' ended: stopped, as the training is complete; log: {log}'
      )


@pytest.mark.slow
@BOTH
def test_a_task_that_fails_is_started_again_on_its_address(tmp_path, mode):
  done = run_launch(
    'all:touch=pid;'
    'worker1:env=DISTMNIST_ATTEMPT,serve;worker1@1:kill=9;worker1@2:touch=again;'
    'worker0:wait=worker1.again;ps0:wait=worker1.again',
    *(tmp_path, mode, '--max_restarts=3', '--isolate=off'),
  )
  assert done.returncode == 0, done.stderr
  log = (tmp_path / 'logs' / 'worker_1.log').read_text()
  port = log.split()[-1]
  served = f'the port was held\nserving on {port}\n'
  assert log == (
    f'DISTMNIST_ATTEMPT=None\n{served}--- restart 1 of 3 ---\n'
    f"DISTMNIST_ATTEMPT='2'\n{served}"
  )
  assert done.stderr.splitlines()[1:] == [
    f'distmnist.launch: worker 1 (127.0.0.1:{port}) killed by SIGKILL:'
    ' restart 1 of 3 in 0.1 s'
  ]
  pids = {
    name: (tmp_path / f'{name}.pid').read_text()
    for name in ('ps0', 'worker0', 'worker1')
  }
  first, *again = done.pids
  assert re.fullmatch(
    rf'pids on this machine: fork server \d+, ps 0 {pids["ps0"]}, '
    rf'worker 0 {pids["worker0"]}, worker 1 \d+',
    first,
  )
  assert again == [f'worker 1 is pid {pids["worker1"]} now']


@pytest.mark.slow
def test_what_may_go_well_the_next_time_is_tried_again(tmp_path):
  done = run_launch(
    'ps0@1:exit=143;ps0@2:touch=again;worker:wait=ps0.again',
    *(tmp_path, '--max_restarts=1'),
  )
  assert done.returncode == 0, done.stderr
  assert 'restart 1 of 1' in last_line(done.stderr)


@pytest.mark.daily(but=['--fork_tasks'])
@pytest.mark.slow
@BOTH
def test_what_would_fail_again_is_not_tried_again(tmp_path, mode):
  do = 'worker0:leave;worker1:wait=worker0.ready,raise=boom'
  done = run_launch(do, tmp_path, mode, '--max_restarts=5')
  assert done.returncode == 1
  assert '  | ValueError: boom\n' in done.stderr
  assert 'failed first: exit code 1;' in last_line(done.stderr)
  assert 'restart' not in done.stderr


@pytest.mark.slow
def test_without_a_ps_too_a_worker_is_started_again_alone(tmp_path):
  done = run_launch(
    'worker:env=DISTMNIST_ATTEMPT;worker1@1:wait=worker0.on,kill=9;'
    'worker1@2:touch=two;worker0:touch=on,wait=worker1.two',
    *(tmp_path, '--num_ps=0', '--num_workers=2', '--max_restarts=1'),
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr.splitlines()[-1].endswith(
    ' killed by SIGKILL: restart 1 of 1 in 0.1 s'
  )
  first = 'DISTMNIST_ATTEMPT=None\n'
  again = "--- restart 1 of 1 ---\nDISTMNIST_ATTEMPT='2'\n"
  for name, expected in ('worker_0', first), ('worker_1', first + again):
    assert (tmp_path / 'logs' / f'{name}.log').read_text() == expected


@pytest.mark.slow
def test_a_loss_after_the_chief_has_ended_is_no_failure(tmp_path):
  done = run_launch(
    'worker0:touch=on;ps0:wait=worker0.on,gone=worker0.on,touch=on,kill=9;'
    'worker1:wait=ps0.on,gone=ps0.on',
    *(tmp_path, '--max_restarts=1'),
  )
  assert done.returncode == 0, done.stderr
  assert last_line(done.stderr).endswith(
    'killed by SIGKILL: not restarted, as the training is complete'
  )


@pytest.mark.slow
def test_a_signal_ends_a_run_that_waits_to_restart(tmp_path):
  with start_launch(
    *('worker0:leave;worker1:kill=9', tmp_path, '--max_restarts=9'),
    program=patched('supervisor.restart_policy', 'FIRST_BACKOFF_SECS', 600),
  ) as running:
    running.wait_for('worker0.ready')
    running.wait_for_words('restart 1 of 9 in 600 s')
    running.send(signal.SIGTERM)
    assert running.process.wait(60) == 143
  assert 'stopped by SIGTERM' in last_line(running.stderr.read_text())
  assert 'restart' not in (tmp_path / 'logs' / 'worker_1.log').read_text()


@pytest.mark.daily(
  but=['--fork_tasks---isolate=on', '--fork_tasks---isolate=off']
)
@pytest.mark.slow
@BOTH_EACH_WAY
def test_who_reaches_the_port_of_a_task(tmp_path, mode, isolate):
  do = (
    'ps0:serve,touch=on,wait=go;worker0:wait=ps0.on,connect=ps0,touch=on,wait=go;'
    'worker1:wait=go'
  )
  with start_launch(do, tmp_path, mode, isolate) as running:
    running.wait_for('ps0.on', 'worker0.on')
    log = (tmp_path / 'logs' / 'ps_0.log').read_text()
    port = int(log.split()[-1])
    with socket.socket() as held:
      if isolate == '--isolate=on':
        # Nothing else may answer in the task's place.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(('', port))
        with pytest.raises(ConnectionRefusedError):
          socket.create_connection(('127.0.0.1', port), timeout=5)
      else:
        socket.create_connection(('127.0.0.1', port), timeout=5).close()
    (tmp_path / 'go').touch()
    assert running.process.wait(60) == 0
  assert 'reached ps0' in (tmp_path / 'logs' / 'worker_0.log').read_text()


@pytest.mark.slow
def test_one_worker_without_a_ps_serves_nowhere_and_keeps_the_network(tmp_path):
  done = run_launch(
    'worker0:env=TF_CONFIG,env=DISTMNIST_NUM_PS,interfaces,facts',
    *(tmp_path, '--num_ps=0', '--num_workers=1', '--isolate=on'),
    **ROLE,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[:3] == [
    *('TF_CONFIG=None', 'DISTMNIST_NUM_PS=None'),
    f'interfaces {[n for _, n in socket.if_nameindex()]}',
  ]
  assert 'job_name' not in done.stdout


@pytest.mark.parametrize(
  ('isolate', 'module', 'flag', 'expected'),
  [
    ('on', TRAIN, '--model=cnn', ['check', 'data']),
    ('off', TRAIN, '--model=cnn', ['check']),
    ('on', 'fake_train', '--model=cnn', []),
    # Its prepare() may overwrite files, and its import may take long.
    ('on', TRAIN, '--problem=my.py', []),
    ('on', TRAIN, '--problem=clicks', ['check']),
  ],
)
def test_the_check_comes_first_and_the_data_where_train_could_not_get_it(
  launch_here, monkeypatch, tmp_path, isolate, module, flag, expected
):
  found = []

  def run(tasks, host, logs_dir, where, first_tasks, *args, **settings):
    found.append([task.name for task in first_tasks])

  held = ports.hold_ports(3)
  monkeypatch.setattr(ports, 'hold_ports', lambda number: held)
  monkeypatch.setattr(network_namespace, 'make_namespace', lambda: 'made')
  monkeypatch.setattr(fork_client, 'make_host', lambda *how: None)
  monkeypatch.setattr(run_tasks, 'run', run)
  flags = f'--isolate={isolate}', f'--module={module}', f'--logs_dir={tmp_path}'
  assert launch_here(*flags, '--', flag) == (0, '', '')
  assert found == [expected]
  for each in held:
    each.close()


@pytest.mark.slow
def test_dry_run_prints_commands_without_tensorflow(tmp_path):
  code = (
    'import sys\n'
    'from distmnist import launch\n'
    'import distmnist.launching.forking.fork_server\n'
    'import distmnist.launchers.local\n'
    'try:\n'
    '  launch.run()\n'
    'finally:\n'
    "  assert not {'tensorflow', 'numpy'} & set(sys.modules)\n"
  )
  done = subprocess.run(
    [sys.executable, '-c', code, '--dry_run', '--gpus=1', '--', '--logdir=a b'],
    env=make_env(),
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  lines = [shlex.split(line) for line in done.stdout.splitlines()]
  assert [line[4:6] for line in lines] == [
    ['--job_name=ps', '--task_index=0'],
    ['--job_name=worker', '--task_index=0'],
    ['--job_name=worker', '--task_index=1'],
  ]
  for line in lines:
    assert '--ps_hosts=127.0.0.1:2222' in line
    assert '--worker_hosts=127.0.0.1:2223,127.0.0.1:2224' in line
    assert line[-1] == '--logdir=a b'
  assert not os.listdir(tmp_path)
