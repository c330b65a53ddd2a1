"""Spark's side of the driver; the slow tests run a real local-cluster."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from distmnist.common import cli, owner, signals
from distmnist.common.names import LAUNCH_ID
from distmnist.launching.supervisor import restart_policy
from distmnist.spark import feed, training
from distmnist.watching import metrics_file
from tests.support import runner
from tests.support.fake_host import FakeHost
from tests.support.paths import PYTHONPATH, REPO, SUPPORT

CLUSTER = 'local-cluster[3,1,1024]'
# Half a minute each on two cores; far more where others take the cores.
DEADLINE_SECS = 240


def slow(test):
  return pytest.mark.slow(pytest.mark.timeout(600)(test))


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (
      {'args': ['--dataset=mnist'], 'feed': feed.Feed([], [])},
      '--dataset does not go with a feed: leave it out',
    ),
    ({'program': 'no.py'}, '--problem=no.py'),
  ],
)
def test_arguments_that_do_not_fit_are_refused_before_spark_is_asked(
  arguments, said
):
  with pytest.raises(cli.UsageError, match=said):
    training.run(None, **arguments)


class FakeSpark:
  """In place of a SparkContext and its RDDs, without an executor."""

  master = 'local-cluster[3,1,1024]'

  def getConf(self):  # noqa: N802
    return {'spark.driver.host': '127.0.0.1', 'spark.master': self.master}

  def parallelize(self, values, num_partitions):
    self.partitions = list(values), num_partitions
    return self

  def barrier(self):
    return self

  def mapPartitions(self, task):  # noqa: N802
    return task


class FakeJob:
  """In place of a spark_job.Job: it ends before a task has begun."""

  has_ended, error, is_cancelled = True, Exception('no room'), False

  def __init__(self, sc, task, on_end):
    sc.task = task

  def start(self):
    pass

  def cancel(self):
    pass

  def end(self):
    pass

  def explain(self):
    return str(self.error)


@pytest.mark.parametrize('is_fed', [False, True])
def test_each_executor_learns_its_cluster_and_where_the_driver_is(
  tmp_path, monkeypatch, is_fed
):
  called = []
  for name in ('check_conf', 'ship_package', 'wait_for_slots'):
    monkeypatch.setattr(
      training.executors, name, lambda *args, name=name: called.append(name)
    )
  monkeypatch.setattr(
    training.executors, 'describe_python', lambda sc: 'some Python'
  )
  monkeypatch.setattr(
    training.executors, 'find_data_dir', lambda *_: ['--data_dir=/there']
  )
  monkeypatch.setattr(training.spark_job, 'Job', FakeJob)
  sc, said, more = FakeSpark(), [], {}
  if is_fed:
    more = {'feed': feed.Feed([], [], image_shape=(8, 8, 3), num_classes=7)}
    monkeypatch.setattr(feed.Feed, 'make_layout', lambda *_: {'leaves': []})
    monkeypatch.setattr(feed, 'make_rdd', lambda sc, *shape: sc)
  with pytest.raises(cli.RunError, match='given up the job: no room'):
    training.run(
      sc,
      args=['--do=x'],
      num_workers=3,
      options=training.Options(
        module='fake_train', logs_dir=str(tmp_path), say=said.append
      ),
      **more,
    )
  assert called == ['check_conf', 'wait_for_slots', 'ship_package']
  by_data_dir = '--data_dir=/there for all tasks, by DISTMNIST_DATA_DIR'
  assert said[: 2 + (not is_fed)] == [
    *([] if is_fed else [by_data_dir]),
    'some Python',
    f'1 ps and 3 workers on {sc.master}, logs in {tmp_path}',
  ]
  (spec,) = sc.task.args
  host, port = spec.pop('driver')
  assert host == '127.0.0.1' and port > 0
  assert len(spec.pop('secret')) == 64
  [(launch, number)] = spec.pop('env')
  assert launch == LAUNCH_ID and len(number) == 16
  flags = spec.pop('train_flags')
  assert flags[0] == '--do=x'
  assert ('--dataset=npy' in flags) == is_fed
  assert ('--data_dir=/there' in flags) == (not is_fed)
  fed = {'layout': {'leaves': []}, 'limit_mb': 4096.0, 'flag': 'data_dir'}
  assert spec == {
    **{'num_ps': 1, 'num_workers': 3, 'module': 'fake_train', 'main': None},
    **{'attempt': 1, 'feed': fed if is_fed else None},
  }
  if not is_fed:
    assert sc.partitions == ([0, 1, 2, 3], 4)


def test_the_program_has_the_folder_as_long_as_the_run(tmp_path, monkeypatch):
  """A notebook lives on: others may train there, or remove the folder."""
  logdir, seen = str(tmp_path / 'run'), []
  for name in ('check_conf', 'wait_for_slots', 'find_data_dir'):
    monkeypatch.setattr(training.executors, name, lambda *_: ())
  monkeypatch.setattr(training.executors, 'describe_python', lambda sc: '')
  monkeypatch.setattr(training.spark_job, 'Job', FakeJob)
  monkeypatch.setattr(
    training.executors,
    'ship_package',
    lambda sc: seen.append(owner.has_launcher(logdir)),
  )
  with pytest.raises(cli.RunError, match='given up the job: no room'):
    training.run(
      FakeSpark(),
      args=[f'--logdir={logdir}'],
      options=training.Options(module='fake_train', say=lambda _: None),
    )
  assert seen == [True] and not owner.has_launcher(logdir)
  first, *_, last = metrics_file.iterate(logdir)
  assert first['launcher'] == 'spark' and last['kind'] == 'end'
  assert (last['ok'], len(first['launch'])) == (False, 16)


class Host(FakeHost):
  """In place of an executor_host.ExecutorHost, without a connection."""

  report = {'global_step': 7}

  def check_end(self, has_failed):
    self.has_failed = has_failed

  def locate(self, text):
    return text.replace('(executor-2:2222)', '(10.0.0.2:40001)')


class Run:
  """A training whose tasks end as `ends` says; see FakeHost."""

  def __init__(self, folder, *ends, max_restarts=0):
    self.host, self.said = Host(ends), []
    self._folder = str(folder)
    self._options = training.Options(max_restarts, say=self.said.append)

  def run(self):
    tasks = training.make_tasks(1, 2, [], 'fake_train')
    return training._run(self.host, tasks, self._folder, self._options)


DONE = [('worker 0', 0), ('worker 1', 0), ('ps 0', 0)]


def test_a_run_that_goes_well_has_its_report(tmp_path):
  run = Run(tmp_path, DONE)
  assert run.run() == {'global_step': 7}
  assert (run.said, run.host.sent, run.host.is_open) == ([], [], False)
  assert not run.host.has_failed


def test_after_a_failure_all_start_again(tmp_path, monkeypatch):
  monkeypatch.setattr(restart_policy, 'FIRST_BACKOFF_SECS', 0)
  run = Run(tmp_path, [('worker 1', -9)], DONE, max_restarts=3)
  monkeypatch.setattr(run.host, 'signal', lambda names, signum: tell(names))

  def tell(names):
    run.host.ends.insert(0, [(name, -15) for name in names])

  assert run.run() == {'global_step': 7}
  assert run.said == [
    'worker 1 (10.0.0.2:40001) killed by SIGKILL: restart 1 of 3 in 0 s, with'
    ' all other tasks'
  ]
  assert len(run.host.started) == 6


@pytest.mark.parametrize(
  ('code', 'max_restarts', 'exit_code', 'cause'),
  [
    (-9, 0, 137, 'killed by SIGKILL'),
    (1, 2, 1, 'exit code 1'),
    (3, 0, 3, 'its executor has died'),
  ],
)
def test_a_task_that_fails_for_good_is_named_with_its_last_lines(
  tmp_path, capsys, code, max_restarts, exit_code, cause
):
  (tmp_path / 'worker_1.log').write_text('of an earlier run\n')
  run = Run(tmp_path, [('worker 1', code)], max_restarts=max_restarts)
  if code == 3:
    run.host.reasons['worker 1'] = cause
  with pytest.raises(training.TaskError) as caught:
    run.run()
  assert caught.value.exit_code == exit_code
  said = str(caught.value)
  for word in ('worker 1 (10.0.0.2:40001)', cause, f'{tmp_path}/worker_1.log'):
    assert word in said
  assert len(run.said) == len(capsys.readouterr().err.splitlines()) == 1
  assert run.host.sent == [('worker 0', 15), ('ps 0', 15)]


def test_a_ps_that_stays_after_the_workers_is_stopped(tmp_path, monkeypatch):
  monkeypatch.setattr(training.run_tasks, 'LEAVE_SECS', 0.01)
  run = Run(tmp_path, DONE[:2])
  assert run.run() == {'global_step': 7}
  [line] = run.said
  assert line.startswith('ps 0 (executor-0:2222) still ran 0 s after')
  assert run.host.sent == [('ps 0', 15)]


def test_a_ps_may_wait_for_a_worker_that_is_lost_after_the_chief_is_done(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(training.run_tasks, 'LEAVE_SECS', 0.01)
  run = Run(tmp_path, DONE[:1], [('worker 1', -9)], max_restarts=1)
  assert run.run() == {'global_step': 7}
  assert 'not restarted, as the training is complete' in run.said[0]
  assert run.said[1].startswith('ps 0 (executor-0:2222) still ran 0 s after')


def test_ctrl_c_stops_all_in_order(tmp_path):
  run = Run(tmp_path, KeyboardInterrupt())
  run.host.poll = functools.partial(interrupt_once, run.host, run.host.poll)
  with pytest.raises(KeyboardInterrupt):
    run.run()
  assert [name for name, _ in run.host.sent] == ['worker 0', 'worker 1', 'ps 0']
  assert not run.host.is_open


def interrupt_once(host, turn, secs):
  if isinstance(host.ends[0], (KeyboardInterrupt, signals.SignalError)):
    raise host.ends.pop(0)
  return turn(secs)


@pytest.mark.parametrize('code', [cli.NOT_SAVED, 143])
def test_a_signal_has_the_code_of_a_chief_that_could_not_save(tmp_path, code):
  run = Run(tmp_path, signals.SignalError(signal.SIGTERM))
  run.host.poll = functools.partial(interrupt_once, run.host, run.host.poll)
  run.host.signal = lambda names, _: run.host.ends.append(
    [(name, code) for name in names]
  )
  with pytest.raises(signals.SignalError) as caught:
    run.run()
  assert caught.value.exit_code == code


def make_env():
  return {**os.environ, 'PYTHONPATH': PYTHONPATH}


class Launch:
  """A launch on a real local-cluster; its end is the end of all of it."""

  def __init__(self, folder, *words, train_flags):
    self.logs = folder / 'logs'
    self.out = folder / 'out'
    self.everything = set()
    with open(self.out, 'w') as out:
      self.process = subprocess.Popen(
        [
          *(sys.executable, '-m', 'distmnist.launch', '--launcher=spark'),
          *(f'--master={CLUSTER}', f'--logs_dir={self.logs}', *words, '--'),
          *train_flags,
        ],
        env=make_env(),
        stdout=out,
        stderr=out,
        cwd=REPO,
        # Where pytest runs in the background, it may be ignored.
        preexec_fn=lambda: signal.signal(
          signal.SIGINT, signal.default_int_handler
        ),
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.look()
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()
    for process in self.everything:
      if is_running(process):
        process.kill()

  def look(self):
    """Remembers all processes that are there; returns them."""
    if self.process.poll() is None:
      parent = psutil.Process(self.process.pid)
      self.everything |= set(parent.children(recursive=True))
    return self.everything

  def wait_for(self, path):
    """Waits for a file that a task touches; returns its psutil.Process."""
    deadline = time.monotonic() + DEADLINE_SECS
    while not path.exists():
      assert self.process.poll() is None, self.out.read_text()
      assert time.monotonic() < deadline, self.out.read_text()
      time.sleep(0.05)
    self.look()
    return psutil.Process(int(path.read_text()))

  def wait(self):
    """Returns the exit code; nothing that it has started may be left."""
    code = self.process.wait(DEADLINE_SECS)
    deadline = time.monotonic() + 60
    while left := [p for p in self.everything if is_running(p)]:
      assert time.monotonic() < deadline, left
      time.sleep(0.02)
    return code


def is_running(process):
  try:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def read_command(process):
  """Returns its words, none if it has ended."""
  try:
    return process.cmdline()
  except psutil.Error:
    return []


def find_executor(task):
  """The JVM above a task's process."""
  return next(
    parent
    for parent in task.parents()
    if 'CoarseGrainedExecutorBackend' in ' '.join(parent.cmdline())
  )


@slow
def test_a_killed_executor_is_named_and_survived(real_spark, tmp_path):
  # fake_train would be quicker, but this is about the checkpoint.
  logdir = tmp_path / 'run'
  flags = [
    *runner.SMALL,
    *('--train_steps=5000', '--save_steps=100', f'--logdir={logdir}'),
  ]
  with Launch(tmp_path, '--max_restarts=2', train_flags=flags) as launch:
    deadline = time.monotonic() + DEADLINE_SECS
    while not list(logdir.glob('model.ckpt-*.index')):
      assert launch.process.poll() is None, launch.out.read_text()
      assert time.monotonic() < deadline, launch.out.read_text()
      time.sleep(0.02)
    worker = next(
      p
      for p in launch.look()
      if {'--job_name=worker', '--task_index=1'} <= {*read_command(p)}
    )
    executor = find_executor(worker)
    executor.kill()
    assert launch.wait() == 0, launch.out.read_text()
    said = launch.out.read_text()
  assert f'its executor, 127.0.0.1 (pid {executor.pid}), has died' in said
  assert ': restart 1 of 2 in 0.1 s, with all other tasks' in said
  log = (launch.logs / 'worker_0.log').read_text()
  first, again = log.split('--- restart 1 of 2 ---\n')
  assert 'restored' not in first
  assert f'restored {logdir}/model.ckpt-' in again
  report = runner.read_report(logdir)
  assert report['global_step'] >= 5000
  assert report['test_accuracy'] > 0.6


@slow
@pytest.mark.parametrize(
  ('do', 'hit', 'code'),
  [
    ('worker1:touch=ready,forever', signal.SIGKILL, 137),
    ('worker1:env=CUDA_VISIBLE_DEVICES,leave', signal.SIGINT, 130),
  ],
)
def test_after_a_failure_or_ctrl_c_nothing_is_left(
  real_spark, two_gpus, tmp_path, do, hit, code
):
  do = f'worker0:leave;ps0:leave;{do}'
  flags = [f'--do={do}', f'--folder={tmp_path}']
  words = ['--module=fake_train', *two_gpus]
  with Launch(tmp_path, *words, train_flags=flags) as launch:
    for name in ('ps0', 'worker0', 'worker1'):
      task = launch.wait_for(tmp_path / f'{name}.ready')
    victim = task if hit == signal.SIGKILL else launch.process
    victim.send_signal(hit)
    assert launch.wait() == code, launch.out.read_text()
    last = launch.out.read_text().splitlines()[-1]
  # The ps was stopped after the last worker.
  left = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob('*.left')}
  assert 'worker0.left' in left
  assert left['ps0.left'] == max(left.values())
  if hit == signal.SIGKILL:
    assert 'error: worker 1 (127.0.0.1:' in last
    assert 'failed first: killed by SIGKILL; log: ' in last
  else:
    assert 'stopped by SIGINT' in last
    log = (launch.logs / 'worker_1.log').read_text()
    assert re.search("CUDA_VISIBLE_DEVICES='[47]'\n", log)


@slow
def test_a_program_of_spark_trains_on_its_data_and_predicts(
  real_spark, tmp_path
):
  done = subprocess.run(
    [sys.executable, SUPPORT / 'spark_program.py', CLUSTER, tmp_path],
    env={
      **make_env(),
      'PYSPARK_PYTHON': sys.executable,
      'SPARK_LOCAL_IP': '127.0.0.1',
    },
    capture_output=True,
    text=True,
    timeout=DEADLINE_SECS,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  # 1001 images from partitions of unlike sizes: the workers have equally many.
  assert '500 training images here' in done.stdout
  assert found['examples'] == 100 * found['local_steps']
  assert found['test_examples'] == 200
  assert found['test_accuracy'] > 0.7
  # The exported model says the same of the same images.
  assert found['columns'] == ['image', 'label', 'classes', 'probabilities']
  assert found['predicted_accuracy'] == pytest.approx(found['test_accuracy'])
  assert found['sums'] == pytest.approx([1, 1], abs=1e-5)
  # Both by a line of ours, and not by a job of Spark that fails.
  assert found['wrong'].startswith(
    'data: images has the shape [3], expected [28,'
  )
  assert found['no_model'].startswith(
    'on an executor: --export_dir=/no/such/model was not found'
  )
  assert 'PythonException' not in done.stderr
  # A problem of one's own, fed by the columns of a DataFrame.
  assert found['problem']['loss'] < 0.02
  assert found['problem']['error'] < 0.5
  assert found['problem']['columns'][-1] == 'outputs'
  # A function of one's own, on each worker.
  assert found['function'] == {
    **{'slope': pytest.approx(2, abs=0.8), 'ps': '/job:ps/task:0'},
    **{'examples': 5, 'workers': 2},
  }
