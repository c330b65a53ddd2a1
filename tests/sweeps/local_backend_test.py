"""What of this machine each trial has, and which flags are not for it."""

import os
import signal
import time

import pytest

from distmnist.common import cli
from distmnist.sweeps import local_backend, runners
from tests.support.paths import PYTHONPATH

DEADLINE_SECS = 60


@pytest.mark.parametrize(
  'gpus, num_parallel, shares',
  [
    (['0', '1', '2'], 2, [['0', '2'], ['1']]),
    (['4', '5'], 3, [['4'], ['5'], ['4']]),
    (['0'], 1, [['0']]),
    ([], 2, [[], []]),
  ],
)
def test_the_trials_share_the_gpus(gpus, num_parallel, shares):
  found = [
    local_backend.share_gpus(gpus, num_parallel, i) for i in range(num_parallel)
  ]
  assert found == shares


def test_flags_of_another_runner_are_refused(set_flags):
  set_flags('--spark_conf=spark.a=b')
  message = '--spark_conf is for --runner=spark'
  with pytest.raises(cli.UsageError, match=message):
    local_backend.from_flags(1, 'distmnist.train', is_launched=False)


def test_trials_share_the_cores_and_the_gpus(set_flags, monkeypatch):
  monkeypatch.setattr(
    local_backend.os, 'sched_getaffinity', lambda _: range(12)
  )
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  set_flags('--gpus=3')
  backend = local_backend.from_flags(2, 'fake_train', is_launched=False)
  assert (backend.num_cores, backend.forked_module) == (6, 'fake_train')
  assert backend.find_env(0) == {'CUDA_VISIBLE_DEVICES': '0,2'}
  assert backend.find_env(1) == {'CUDA_VISIBLE_DEVICES': '1'}
  set_flags('--gpus=0')
  backend = local_backend.from_flags(99, 'fake_train', is_launched=False)
  assert backend.num_cores == 1
  assert backend.find_env(0) == {'CUDA_VISIBLE_DEVICES': ''}


def test_a_launch_is_not_forked_and_other_machines_have_cores(set_flags):
  set_flags('--launcher=ssh')
  backend = local_backend.from_flags(1, 'fake_train', is_launched=True)
  assert (backend.num_cores, backend.forked_module) == (None, '')


pytestmark = pytest.mark.slow


@pytest.fixture
def runner(tmp_path, monkeypatch):
  monkeypatch.setenv('PYTHONPATH', PYTHONPATH)
  backend = local_backend.LocalBackend(1, None, None, 'fake_train')
  with (
    open(tmp_path / 'lock', 'w') as lock,
    backend.open_host(str(tmp_path), lock, 3.0) as host,
  ):
    yield runners.Runner(host, DEADLINE_SECS)


def start(runner, name, log, *flags, **fields):
  argv = ['python', '-m', 'fake_train', *flags]
  return runner.start(runners.Command(name, argv, log, **fields))


def wait_for_all(runner, names):
  """Returns {name: code} once all of `names` have ended."""
  ended, deadline = {}, time.monotonic() + DEADLINE_SECS
  while ended.keys() != names and time.monotonic() < deadline:
    ended |= dict(runner.wait())
  return ended


def test_each_command_has_its_log_and_its_code(runner, tmp_path):
  logs = {name: tmp_path / f'{name}.log' for name in 'ab'}
  logs['b'].write_text('before\n')
  with pytest.raises(OSError):
    start(runner, 'x', str(tmp_path / 'none' / 'log'))
  assert runner.wait() == []  # It has begun nothing.
  assert not os.path.exists(tmp_path / 'none')
  sizes = [
    start(runner, name, str(log), f'--do=all:print={name},exit={code}')
    for code, (name, log) in enumerate(logs.items())
  ]
  assert sizes == [0, 7]
  assert wait_for_all(runner, {'a', 'b'}) == {'a': 0, 'b': 1}
  assert 'a' in logs['a'].read_text()
  assert logs['b'].read_text().startswith('before\n')


def test_who_takes_too_long_is_told_to_leave_and_killed_after_its_grace(
  runner, tmp_path
):
  log = tmp_path / 'log'
  start(runner, 'late', str(log), '--do=all:forever', limit_secs=0.5)
  assert wait_for_all(runner, {'late'}) == {'late': cli.FAILED}
  do = f'--folder={tmp_path}', '--do=all:deaf,touch=up,forever'
  runner._grace_secs = 0.2
  deaf = str(tmp_path / 'deaf.log')
  start(runner, 'deaf', deaf, *do, limit_secs=0.5)
  assert wait_for_all(runner, {'deaf'}) == {'deaf': cli.FAILED}
  assert log.read_text().endswith(
    'error: not done within --trial_timeout_secs=0.5\n'
  )


def test_the_time_in_a_queue_does_not_count(runner, tmp_path):
  for name, do in ('waits', 'wait=go'), ('runs', 'touch=_0.log,forever'):
    folder = tmp_path / name
    folder.mkdir()
    (folder / 'slurm.log').write_text('of an earlier run')
    flags = f'--folder={folder}', f'--do=all:{do}'
    fields = {'limit_secs': 0.5, 'logs_dir': str(folder)}
    start(runner, name, str(tmp_path / f'{name}.log'), *flags, **fields)
  assert wait_for_all(runner, {'runs'}) == {'runs': cli.FAILED}
  (tmp_path / 'waits' / 'go').touch()
  assert wait_for_all(runner, {'waits'}) == {'waits': 0}


def test_at_a_stop_who_is_deaf_is_killed(runner, tmp_path):
  folder = f'--folder={tmp_path}'
  for name, actions in ('deaf', 'deaf,touch=deaf'), ('other', 'touch=other'):
    log = str(tmp_path / f'{name}.log')
    start(runner, name, log, folder, f'--do=all:{actions},forever')
  # They are up when a third one, which waits for both, has ended.
  waits = 'wait=worker0.deaf,wait=worker0.other'
  log = str(tmp_path / 'last.log')
  start(runner, 'last', log, folder, f'--do=all:{waits}')
  assert wait_for_all(runner, {'last'}) == {'last': 0}
  assert sorted(runner.stop(0.5)) == [
    ('deaf', -signal.SIGKILL),
    ('other', -signal.SIGTERM),
  ]
