"""Spark's side of the driver; the slow tests run a real local-cluster."""

import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from distmnist import cli, on_spark
from tests import runner

TESTS = pathlib.Path(__file__).resolve().parent
CLUSTER = 'local-cluster[3,1,1024]'
# Half a minute each on two cores; far more where others take the cores.
DEADLINE_SECS = 240


def slow(test):
  return pytest.mark.slow(pytest.mark.timeout(600)(test))


@pytest.mark.parametrize(
  ('master', 'num_slots'),
  [
    ('local', 1),
    ('local[4]', 4),
    ('local[4,2]', 4),
    ('local[*]', os.cpu_count()),
    ('local-cluster[3,2,1024]', 6),
    ('local-cluster[3, 2, 1024]', 6),
    ('spark://host:7077', None),
    ('yarn', None),
  ],
)
def test_the_slots_of_this_machine_are_known_before_spark_starts(
  master, num_slots
):
  assert on_spark.count_fixed_slots(master) == num_slots


def test_too_few_slots_are_said_with_what_to_do():
  on_spark.check_fixed_slots(CLUSTER, 3)
  on_spark.check_fixed_slots('yarn', 300)
  with pytest.raises(cli.UsageError, match='has 1 slot, .* has 2 tasks'):
    on_spark.check_fixed_slots('local', 2)


@pytest.mark.parametrize(
  'flags',
  [
    ['--logdir=/shared/run', '--data_dir=~/data', '--resume=never'],
    [],
  ],
)
def test_paths_that_all_executors_share_are_fine(flags):
  on_spark.check_paths(flags)


def test_the_data_folder_of_the_driver_is_that_of_the_executors():
  said = []
  environ = {'DISTMNIST_DATA_DIR': '/shared/data'}
  found = on_spark.find_data_dir(['--a=1'], environ, said.append)
  assert found == ['--data_dir=/shared/data']
  assert said == [
    '--data_dir=/shared/data for all tasks, by DISTMNIST_DATA_DIR'
  ]
  assert on_spark.find_data_dir(['--data_dir=/x'], environ) == []
  assert on_spark.find_data_dir([], {}) == []
  with pytest.raises(cli.UsageError, match='--data_dir=data is relative'):
    on_spark.find_data_dir([], {'DISTMNIST_DATA_DIR': 'data'})


@pytest.mark.parametrize('name', ['logdir', 'data_dir', 'resume'])
def test_a_relative_path_is_refused(name):
  with pytest.raises(cli.UsageError, match=f'--{name}=run/1 is relative'):
    on_spark.check_paths([f'--{name}', 'run/1'])


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ({'data': []}, 'input_mode is InputMode.FILES: give InputMode.RDD'),
    (
      {'input_mode': on_spark.InputMode.RDD, 'data': []},
      'needs data and test_data, such as .* rdd.randomSplit',
    ),
    (
      {
        'train_flags': ['--dataset=mnist'],
        'input_mode': on_spark.InputMode.RDD,
        'data': [],
        'test_data': [],
      },
      '--dataset is for InputMode.FILES: leave it out',
    ),
    ({'train_flags': ['--job_name=ps']}, "--job_name is the launcher's to set"),
  ],
)
def test_arguments_that_do_not_fit_are_refused_before_spark_is_asked(
  arguments, said
):
  with pytest.raises(cli.UsageError, match=said):
    on_spark.run(None, **arguments)


PYTHON_ERROR = """An error occurred while calling z:collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 2044, in main
    process()
ModuleNotFoundError: No module named 'absl'

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""
JAVA_ERROR = """An error occurred while calling z:collectAndServe.
: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


@pytest.mark.parametrize(
  ('text', 'line'),
  [
    (PYTHON_ERROR, "ModuleNotFoundError: No module named 'absl'"),
    (JAVA_ERROR, '[SPARK_JOB_CANCELLED] Job 1 cancelled'),
    ('only\nthis', 'only'),
    ('', 'ValueError'),
  ],
)
def test_an_error_of_spark_becomes_one_line(text, line):
  assert on_spark.explain(ValueError(text)) == line


def test_an_executor_that_is_lost_early_is_named():
  text = (
    'Most recent failure reason: Stage failed because barrier task ResultTask'
    '(0, 1) finished unsuccessfully.\nExecutorLostFailure (executor 1 exited'
    ' caused by one of the running tasks) Reason: Command exited with code 137'
  )
  assert on_spark.find_lost_executor(ValueError(text)) == (
    'executor 1 was lost before its task began: Command exited with code 137'
  )
  assert on_spark.find_lost_executor(ValueError(PYTHON_ERROR)) is None


@pytest.fixture
def why_no_spark():
  if importlib.util.find_spec('pyspark') is None:
    pytest.skip('no pyspark: pip install .[spark]')
  if not (os.environ.get('JAVA_HOME') or shutil.which('java')):
    pytest.skip('no Java: Spark needs Java 17')


def make_env():
  return {**os.environ, 'PYTHONPATH': f'{TESTS.parent}:{TESTS}'}


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
        cwd=TESTS.parent,
        # Whoever runs pytest in the background may ignore it.
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
def test_a_killed_executor_is_named_and_survived(why_no_spark, tmp_path):
  # fake_train would be quicker, but the checkpoint is what it is about.
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
  assert ': restart 1 of 2, with all other tasks' in said
  log = (launch.logs / 'worker_0.log').read_text()
  first, again = log.split('--- restart 1 ---\n')
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
    ('worker1:leave', signal.SIGINT, 130),
  ],
)
def test_after_a_failure_or_ctrl_c_nothing_is_left(
  why_no_spark, tmp_path, do, hit, code
):
  do = f'worker0:leave;ps0:leave;{do}'
  flags = [f'--do={do}', f'--folder={tmp_path}']
  with Launch(tmp_path, '--module=fake_train', train_flags=flags) as launch:
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


@slow
def test_a_program_of_spark_trains_on_its_data_and_predicts(
  why_no_spark, tmp_path
):
  done = subprocess.run(
    [sys.executable, TESTS / 'spark_program.py', CLUSTER, tmp_path],
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
  # 1001 images from partitions of unlike sizes: the workers have as many.
  assert '500 training images here' in done.stdout
  assert found['images'] == 100 * found['local_steps']
  assert found['test_images'] == 200
  assert found['test_accuracy'] > 0.7
  # The model that was exported says the same of the same images.
  assert found['columns'] == ['image', 'label', 'class', 'probabilities']
  assert found['predicted_accuracy'] == pytest.approx(found['test_accuracy'])
  assert found['sums'] == pytest.approx([1, 1], abs=1e-5)
  # Both by a line of ours, and not by a job of Spark that fails.
  assert found['wrong'].startswith('data: an image of 3 values, expected 784')
  assert found['no_model'].startswith(
    'on an executor: --export_dir=/no/such/model was not found'
  )
  assert 'PythonException' not in done.stderr
