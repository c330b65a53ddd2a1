import contextlib
import dataclasses
import errno
import os
import pathlib
import signal

import psutil
import pytest

from distmnist.common import cli, stop_grace
from distmnist.launching import host as host_lib
from distmnist.launching import jobs, run_record
from distmnist.launching.forking import fork_client
from distmnist.launching.supervisor import (
  failures,
  restart_policy,
  task_group,
)
from distmnist.watching import metrics_file
from tests.support.fake_host import FakeHost
from tests.support.paths import SUPPORT


@pytest.fixture
def env():
  return {**os.environ, 'PYTHONPATH': str(SUPPORT)}


def make_tasks(do, num_ps=0, num_workers=1):
  hosts = [f'127.0.0.1:{1 + i}' for i in range(num_ps + num_workers)]
  return jobs.make_tasks(
    hosts[:num_ps], hosts[num_ps:], [f'--do={do}'], module='fake_train'
  )


def make_group(module, folder, env, fork_tasks=True, **settings):
  grace_secs = settings.get('stop_grace_secs', stop_grace.DEFAULT_SECS)
  host = fork_client.make_host(
    module, folder, env, fork_tasks, stop_grace_secs=grace_secs
  )
  return task_group.TaskGroup(host, folder, **settings)


def is_alive(pid):
  # An orphan may stay a zombie until a slow init reaps it.
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


@pytest.fixture
def cluster():
  return jobs.make_tasks(['x:1'], ['x:2', 'x:3'], [])


def test_all_that_is_left_is_stopped_the_workers_first(tmp_path, cluster):
  host = FakeHost([[('worker 1', 0)]])
  with task_group.TaskGroup(host, str(tmp_path)) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster[2:]) == []
    assert group.stop() == []
  assert not host.is_open
  assert host.sent == [('worker 0', 15), ('ps 0', 15)]
  assert group.failure is None


def test_what_a_signal_interrupts_is_killed_at_once_by_the_next(
  tmp_path, cluster
):
  host = FakeHost()
  with task_group.TaskGroup(host, str(tmp_path)) as group:
    for task in cluster:
      group.start(task)
    host.signals.append(15)
    assert group.wait(cluster) == cluster
    host.signals.append(15)
    assert not group.is_cut_short
    assert group.stop() == cluster
    assert group.is_cut_short
  assert host.sent[2:] == [(task.name, 9) for task in cluster]


@pytest.mark.parametrize('num_restarts', [0, 1])
def test_a_host_that_dies_is_back_with_its_tasks_as_often_as_it_may(
  tmp_path, cluster, monkeypatch, num_restarts
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  death = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  host = FakeHost([death, [], [(task.name, 0) for task in cluster]])
  begun = []
  with task_group.TaskGroup(
    host,
    str(tmp_path),
    restart_policy.Limits(num_restarts),
    on_start=lambda *facts: begun.append(facts),
  ) as group:
    for task in cluster:
      group.start(task)
    if not num_restarts:
      with pytest.raises(host_lib.HostDiedError):
        group.wait(cluster)
      return
    assert group.wait(cluster) == []
  assert host.num_restarts == 1
  assert begun == [('fake host', 7, 2)]
  assert len(host.started) == 2 * len(cluster)


@pytest.mark.parametrize('num_restarts', [0, 1])
def test_the_record_has_the_end_of_each_task_of_a_host_that_dies(
  tmp_path, cluster, monkeypatch, num_restarts
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  death = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  host = FakeHost([[], death, [], [(task.name, 0) for task in cluster]])
  mine = run_record.RunRecord(str(tmp_path), 'local', [])
  mine.begin(cluster, str(tmp_path))
  limits = restart_policy.Limits(num_restarts)
  with task_group.TaskGroup(host, str(tmp_path), limits, record=mine) as group:
    for task in cluster:
      group.start(task)
    with contextlib.suppress(host_lib.HostDiedError):
      group.wait(cluster)
  mine.close()
  events = [
    (line['event'], line.get('attempt') or line['code'])
    for line in metrics_file.iterate(str(tmp_path))
    if line.get('about') == 'worker 1'
  ]
  again = [('started', 2), ('ended', 0)] * num_restarts
  assert events == [('started', 1), ('ended', -9), *again]


@pytest.mark.slow
@pytest.mark.parametrize('fork_tasks', [True, False])
def test_the_first_failure_is_remembered_with_its_last_lines(
  tmp_path, env, fork_tasks
):
  cluster = make_tasks('worker0:count=30,exit=7', num_workers=2)
  logs = [tmp_path / f'worker_{i}.log' for i in range(2)]
  for log in logs:
    log.write_text('from an earlier run\n')
  with make_group('fake_train', str(tmp_path), env, fork_tasks) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster[:1]) == []
    assert group.failure == failures.Failure(cluster[0], 7)
    assert group.failure.cause == 'exit code 7'
    lines = [group.last_lines(task) for task in cluster]
  # Those of an earlier run are not blamed.
  assert lines == [[f'worker0 line {i}' for i in range(20, 30)], []]
  text = logs[0].read_text()
  assert text.startswith('from an earlier run\nworker0 line 0\n')
  assert sorted(tmp_path.iterdir()) == logs


@contextlib.contextmanager
def start_again(task, max_restarts, folder, env):
  """Yields a group in which a task is started, and again if it fails."""
  limits = restart_policy.Limits(max_restarts)
  with make_group('fake_train', str(folder), env, limits=limits) as group:
    group.start(task)
    yield group


@pytest.mark.slow
def test_a_restart_has_a_line_of_its_own_in_the_log(tmp_path, env):
  (task,) = make_tasks('worker0@1:write=cut,exit=3;worker0@2:print=whole')
  with start_again(task, 1, tmp_path, env) as group:
    assert group.wait([task]) == []
    assert group.last_lines(task) == ['whole']
    assert group.records[task.name].is_done
    assert group.records[task.name].attempt > 1
  log = (tmp_path / 'worker_0.log').read_text()
  assert log == 'cut\n--- restart 1 of 1 ---\nwhole\n'


@pytest.mark.slow
def test_who_waits_for_a_restart_counts_as_running_until_the_stop(
  caplog, tmp_path, env, monkeypatch
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 30)
  (task,) = make_tasks('worker0:exit=3')
  with start_again(task, 9, tmp_path, env) as group:
    while not caplog.messages:
      assert group.wait([task], 0.01) == [task]
    assert group.wait([task], 0.1) == [task]
    assert group.stop() == []
    assert group.wait([task]) == []
    assert group.failure is None


@pytest.mark.slow
def test_wait_returns_who_still_runs_at_the_deadline(tmp_path, env):
  cluster = make_tasks('worker0:forever', num_workers=2)
  with make_group('fake_train', str(tmp_path), env) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster[1:]) == []
    assert group.wait(cluster, 0.2) == cluster[:1]
    assert group.stop() == []


def test_what_ended_while_the_launcher_was_suspended_is_not_late(
  tmp_path, cluster
):
  host = FakeHost([[('worker 0', 0)], [('worker 1', 0)]])
  with task_group.TaskGroup(host, str(tmp_path)) as group:
    for task in cluster:
      group.start(task)
    # By the time that it looks, the deadline is over.
    assert group.wait(cluster, 0) == cluster[:1]
    assert group.stop() == []


@pytest.mark.slow
def test_the_end_of_the_context_is_the_end_of_the_tasks(tmp_path, env):
  cluster = make_tasks('worker0:forever')
  before = signal.getsignal(signal.SIGINT)
  # It may still have to import the module, on a busy machine.
  with make_group(
    'fake_train', str(tmp_path), env, stop_grace_secs=60
  ) as group:
    group.start(cluster[0])
    server = group._host.server
  assert server.returncode == 0
  assert signal.getsignal(signal.SIGINT) == before


def test_a_stop_during_the_import_does_not_wait_for_it(tmp_path, env):
  (tmp_path / 'slow_module.py').write_text('import time; time.sleep(60)')
  env['PYTHONPATH'] = str(tmp_path)
  cluster = make_tasks('')
  with make_group('slow_module', str(tmp_path), env) as group:
    group.start(cluster[0])
    assert group.wait(cluster, 0.1) == cluster
    assert group.stop() == []


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_is_one_error(tmp_path, env):
  (tmp_path / 'broken_module.py').write_text('import no_such_thing')
  env['PYTHONPATH'] = str(tmp_path)
  cluster = make_tasks('')
  with (
    pytest.raises(
      cli.RunError,
      match="cannot import broken_module: .*No module named 'no_such_thing'",
    ),
    make_group('broken_module', str(tmp_path), env) as group,
  ):
    group.start(cluster[0])
    group.wait(cluster)
  assert 'Traceback' in (tmp_path / 'fork_server.log').read_text()


@pytest.mark.slow
def test_a_server_that_was_killed_is_back_with_its_tasks(caplog, tmp_path, env):
  do = 'ps0@1:forever;worker0@1:deaf,forever;worker1:touch=done'
  cluster = make_tasks(f'{do};worker0@2:print=back', num_ps=1, num_workers=2)
  for i, task in enumerate(cluster):
    cluster[i] = dataclasses.replace(
      task, argv=(*task.argv, f'--folder={tmp_path}')
    )
  begun = []
  with make_group(
    'fake_train',
    str(tmp_path),
    env,
    limits=restart_policy.Limits(1),
    on_start=lambda *facts: begun.append(facts),
  ) as group:
    for task in cluster:
      group.start(task)
    while not group.records[cluster[2].name].is_done:
      group.wait(cluster, 0.01)
    old = dict(group._host.pids)
    group._host.server.kill()
    assert group.wait(cluster) == []
    assert group.failure is None
    assert all(group.records[task.name].attempt > 1 for task in cluster)
  assert caplog.messages == [
    'the fork server has died (killed by SIGKILL), and its tasks with it: '
    'restart 1 of 1 of all in 0.1 s',
    'worker 1 is started again with worker 0',
  ]
  assert not any(is_alive(pid) for pid in old.values())
  assert [fact[0] for fact in begun].count('fork server') == 1
  log = (tmp_path / 'worker_0.log').read_text()
  assert log == '--- the fork server died: restart 1 of 1 ---\nback\n'


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_ends_the_run(tmp_path, env):
  (task,) = make_tasks('worker0:touch=on,forever')
  with (
    pytest.raises(cli.LostError, match='the fork server has died') as error,
    make_group(
      'fake_train',
      str(tmp_path),
      env,
      limits=restart_policy.Limits(1),
      on_start=lambda *_: group._host.server.kill(),
    ) as group,
  ):
    group.start(task)
    group.wait([task])
  assert error.value.exit_code == 3


@pytest.mark.daily
@pytest.mark.slow
def test_hundreds_of_tasks_start_and_end(tmp_path, env):
  (tmp_path / 'nothing.py').write_text('def run(): pass')
  env['PYTHONPATH'] = str(tmp_path)
  hosts = [f'127.0.0.1:{1 + i}' for i in range(310)]
  cluster = jobs.make_tasks(hosts[:8], hosts[8:], [], module='nothing')
  with make_group('nothing', str(tmp_path), env) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster) == []
    assert all(group.records[task.name].is_done for task in cluster)


@pytest.mark.slow
def test_a_stop_is_heard_while_hundreds_start(tmp_path, env):
  (tmp_path / 'waits.py').write_text(
    'import threading\ndef run(): threading.Event().wait(60)'
  )
  env['PYTHONPATH'] = str(tmp_path)
  hosts = [f'127.0.0.1:{1 + i}' for i in range(310)]
  cluster = jobs.make_tasks(hosts[:8], hosts[8:], [], module='waits')
  with make_group('waits', str(tmp_path), env) as group:
    for task in cluster:
      group.start(task)
    os.kill(os.getpid(), signal.SIGTERM)
    assert group.wait(cluster) == cluster
    assert group.signals == [signal.SIGTERM]
    group.stop(signal.SIGKILL)
    assert group.wait(cluster) == []


@pytest.mark.slow
def test_a_task_is_called_what_it_is(tmp_path, env):
  (task,) = make_tasks('worker0:touch=on,forever')
  task = dataclasses.replace(
    task, argv=(*task.argv, f'--folder={tmp_path}', '--logdir=/some/run')
  )
  with make_group('fake_train', str(tmp_path), env) as group:
    group.start(task)
    while not (tmp_path / 'worker0.on').exists():
      assert group.wait([task], 0.01)
    titles = [
      pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().strip(b'\0').decode()
      for pid in (group._host.pids[task.name], group._host.pid)
    ]
    group.stop()
  assert titles == ['distmnist worker 0 /some/run', 'distmnist fork server']


def test_tasks_that_start_together_leave_in_order_before(
  tmp_path, cluster, monkeypatch
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  host = FakeHost([[('worker 1', -9)]])
  with task_group.TaskGroup(
    host, str(tmp_path), restart_policy.Limits(1, restart_together=True)
  ) as group:
    for task in cluster:
      group.start(task)
    group.wait(cluster, 0.2)
    assert host.sent == [('worker 0', 15), ('ps 0', 15)]
    assert len(host.started) == 6
  log = (tmp_path / 'ps_0.log').read_text()
  assert log == '--- restart 1 of 1 ---\n'


def test_a_host_may_say_why_a_task_has_ended(tmp_path, cluster):
  host = FakeHost([[('worker 1', None)]])
  host.reasons['worker 1'] = 'the host has died'
  with task_group.TaskGroup(host, str(tmp_path)) as group:
    for task in cluster:
      group.start(task)
    # It still runs: it is told to leave with the others.
    assert group.wait(cluster) == cluster
    assert group.stop() == []
  assert group.failure.cause == 'the host has died'
  assert host.sent == [('worker 0', 15), ('worker 1', 15), ('ps 0', 15)]


@pytest.fixture
def make(tmp_path, cluster, monkeypatch):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)

  def make(ends, limits, on_start=lambda *facts: None):
    host = FakeHost(ends)
    group = task_group.TaskGroup(host, str(tmp_path), limits, on_start=on_start)
    for task in cluster:
      group.start(task)
    return host, group

  return make


def test_after_a_signal_no_task_starts_again(make, cluster):
  host, group = make([[('worker 1', -9)]], restart_policy.Limits(1))
  host.signals.append(15)
  group.wait(cluster, 0)
  assert group.records.waiting == []


@pytest.mark.parametrize('is_ready', [False, True])
def test_a_host_that_dies_while_all_end_has_no_task_left(
  make, cluster, is_ready
):
  death = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  host, group = make([death], restart_policy.NO_LIMITS)
  host.is_ready = is_ready
  assert group.stop() == []
  assert group.records.running == []
  assert host.num_restarts == 0
  # Those that ran were killed with it, and may not have saved.
  assert group.records['worker 0'].has_lost_steps == is_ready


def test_the_start_of_each_attempt_is_told_with_its_number(make, cluster):
  begun = []
  host, group = make(
    [], restart_policy.NO_LIMITS, lambda *facts: begun.append(facts)
  )
  host.begun += [('worker 0', 12), ('no task of ours', 13)]
  group.wait(cluster, 0)
  group.wait(cluster, 0)
  assert begun == [('worker 0', 12, 1)]


def test_a_task_whose_log_cannot_be_written_now_is_restarted_alone(
  make, cluster, monkeypatch
):
  host, group = make([[('worker 1', 3)]], restart_policy.Limits(3))
  num_started, fails = len(host.started), [True]
  real = group._logs.begin

  def begin(task, note=''):
    if fails:
      fails.pop()
      raise OSError(errno.EIO, 'Input/output error')
    return real(task, note)

  monkeypatch.setattr(group._logs, 'begin', begin)
  group.wait(cluster, 0)
  assert len(host.started) == num_started
  record = group.records['worker 1']
  assert (record.code, record.is_running) == (71, False)
  assert record.failure.reason == (
    'not started, as its log cannot be written: Input/output error'
  )
  group.wait(cluster, 0)
  assert host.started[num_started:] == [
    ('worker 1', {'DISTMNIST_ATTEMPT': '3'})
  ]
  assert group.failure is None


@pytest.mark.parametrize('num_refusals', [1, 6])
def test_a_host_that_cannot_be_started_again_now_is_tried_again(
  make, cluster, logged, num_refusals
):
  death = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  host, group = make([death], restart_policy.Limits(1))
  refusals = [cli.PassingError('no fork server')] * num_refusals

  def restart():
    if refusals:
      raise refusals.pop()

  host.restart = restart
  group.wait(cluster, 0)
  said = [line for line in logged if line.startswith('no fork server: ')]
  assert said[0] == 'no fork server: trying again in 0.5 s'
  assert len(said) == num_refusals
  assert len(host.started) == 6


def test_a_host_that_can_never_be_started_again_is_an_error(make, cluster):
  death = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  host, group = make([death], restart_policy.Limits(1))

  def restart():
    raise cli.PassingError('no fork server')

  host.restart = restart
  with pytest.raises(cli.PassingError, match='no fork server'):
    group.wait(cluster, 0)


@pytest.mark.slow
@pytest.mark.parametrize('ends_as_one', [False, True])
def test_an_evaluator_stays_while_all_others_start_again(
  tmp_path, cluster, monkeypatch, ends_as_one
):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  host = FakeHost([[('worker 1', 3)]])
  host.ends_as_one = ends_as_one
  evaluator = jobs.Task('evaluator', 0, 'x', None, ('python', '-m', 'x'))
  limits = restart_policy.Limits(1, restart_together=True)
  with task_group.TaskGroup(host, str(tmp_path), limits) as group:
    for task in [*cluster, evaluator]:
      group.start(task)
    group.wait([*cluster, evaluator], 0.5)
    told = [name for name, _ in host.sent]
    assert ('evaluator 0' in told) == ends_as_one
    started = [name for name, _ in host.started[4:]]
    assert sorted(started[:3]) == ['ps 0', 'worker 0', 'worker 1']


def test_a_signal_amid_a_restart_of_all_lets_them_save(tmp_path, cluster):
  host = FakeHost([[('worker 1', 3)]])
  sent = host.signal

  def signal_once(names, signum):
    sent(names, signum)
    host.ends.clear()  # They take a while.
    if not host.signals:
      host.signals.append(15)

  host.signal = signal_once
  limits = restart_policy.Limits(1, restart_together=True)
  with task_group.TaskGroup(host, str(tmp_path), limits) as group:
    for task in cluster:
      group.start(task)
    assert group.wait(cluster)
    assert host.sent == [('worker 0', 15)]
    host.ends.append([('worker 0', 143)])
    host.signal = sent
    assert group.stop() == []
  # The first was told once: a second signal would cost what it saves.
  assert host.sent == [('worker 0', 15), ('ps 0', 15)]
