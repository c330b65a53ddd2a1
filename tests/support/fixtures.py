"""What all tests share: quiet TensorFlow, clusters, the real MNIST."""

import distmnist.runtime  # noqa: F401  Before anything imports TensorFlow.

# isort: split
import contextlib
import importlib.util
import logging
import os
import pathlib
import shutil
import signal
import subprocess
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver

from distmnist import (
  launch,
  train,  # noqa: F401  All its flags, for set_flags.
)
from distmnist.common import console, registry, signals
from tests.support import in_process, object_store, programs, runner, stepper
from tests.support.paths import REPO

_SHARED = REPO.parent / 'shared' / 'data'
# What tests start hears these, though nohup or a shell's & has them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Sessions of tests rewrite their graphs as little as those of a training.
tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})


@pytest.fixture(scope='session')
def mnist_dir():
  """The folder with the real MNIST; skips where there is none."""
  given = os.environ.get('DISTMNIST_DATA_DIR')
  folder = pathlib.Path(given) if given else _SHARED
  if not (folder / 'mnist').is_dir():
    pytest.skip(
      'no MNIST: set DISTMNIST_DATA_DIR to the folder that has mnist/ in it'
    )
  return folder


@pytest.fixture
def real_spark():
  """Skips where there is no Spark."""
  if importlib.util.find_spec('pyspark') is None:
    pytest.skip('no pyspark: pip install .[spark]')
  if not (os.environ.get('JAVA_HOME') or shutil.which('java')):
    pytest.skip('no Java: Spark needs Java 17')


@pytest.fixture
def two_gpus(tmp_path):
  """Settings by which each executor of Spark believes that it has a GPU."""
  script = tmp_path / 'gpus.sh'
  script.write_text(
    '#!/bin/sh\necho \'{"name": "gpu", "addresses": ["4", "7"]}\'\n'
  )
  script.chmod(0o755)
  return [
    '--spark_conf=spark.worker.resource.gpu.amount=1',
    f'--spark_conf=spark.worker.resource.gpu.discoveryScript={script}',
    '--spark_conf=spark.executor.resource.gpu.amount=1',
    '--spark_conf=spark.task.resource.gpu.amount=1',
  ]


@pytest.fixture(autouse=True)
def _kept_signals():
  """A training that a test begins in this process must not hear later signals.

  It would end the process, and the tests with it, some seconds after one.
  """
  before = signal.set_wakeup_fd(-1)
  yield
  signal.set_wakeup_fd(before)


@pytest.fixture(autouse=True)
def _kept_logger():
  """A program that a test runs in this process must not keep it from caplog."""
  logger = logging.getLogger('distmnist')
  before = logger.handlers, logger.level, logger.propagate
  yield
  logger.handlers, logger.level, logger.propagate = before


@pytest.fixture
def logged():
  """The lines that distmnist's modules log, a list of str that grows."""
  lines = []
  console.print_logs(lines.append)
  return lines


@pytest.fixture(autouse=True)
def own_signals():
  """Puts the handlers of signals back that a test has set, as a task does."""
  before = {n: signal.getsignal(n) for n in signals.STOPS}
  yield
  for signum, handler in before.items():
    # One of C, such as faulthandler's, is None to Python.
    if handler is not None and signal.getsignal(signum) != handler:
      signal.signal(signum, handler)
      signal.set_wakeup_fd(-1)


@pytest.fixture
def heed_signals():
  """For tests that start programs which a signal is to end."""
  # Under nohup, or in the background of a script, SIGHUP or SIGINT is ignored
  # by pytest, and would be by all that it starts.
  signums = (signal.SIGINT, signal.SIGHUP)
  before = [signal.signal(n, signal.default_int_handler) for n in signums]
  yield
  for signum, handler in zip(signums, before, strict=True):
    signal.signal(signum, handler)


@pytest.fixture
def set_flags():
  """Returns set_flags('--name=value', ...); undone when the test ends."""
  # flagsaver takes away flags that are defined within it.
  for room in ('datasets', 'models', 'strategies'):
    registry.load_all(f'distmnist.{room}')
  flags.FLAGS(['test'])
  with flagsaver.flagsaver():
    yield lambda *words: flags.FLAGS(['test', *words])


@pytest.fixture(scope='module')
def forked_launches():
  """Makes the launches of a module forks; see programs.LaunchPopen."""
  with mock.patch.object(subprocess, 'Popen', programs.LaunchPopen):
    yield


@pytest.fixture
def launch_here(capsys, monkeypatch):
  """Returns launch(words) -> (code, stdout, stderr), in this process.

  For launchers that end before they start a task. What checks train's flags is
  left out: see launching/train_flags_test.py.
  """
  for name in ('check', 'check_combination'):
    monkeypatch.setattr(launch.train_flags_lib, name, lambda *_: None)

  def launch_words(*words):
    return programs.launch_inside(*words), *capsys.readouterr()

  return launch_words


@pytest.fixture
def tf_session():
  """A session on a graph of its own; both are the defaults."""
  with tf.Graph().as_default(), tf.Session() as session:
    yield session


@pytest.fixture(scope='session')
def _clusters():
  """TensorFlow cannot stop a server, so each shape is started once."""
  return {}


@pytest.fixture
def make_cluster(_clusters):
  """Returns make(num_ps, num_workers) -> in_process.InProcessCluster."""
  used = []

  def make(num_ps, num_workers):
    shape = num_ps, num_workers
    if shape not in _clusters:
      _clusters[shape] = in_process.InProcessCluster(*shape)
    cluster = _clusters[shape]
    used.append(cluster)
    return cluster

  yield make
  for cluster in used:
    cluster.reset()


@pytest.fixture
def make_stepper(make_cluster):
  """Returns make(num_ps, num_workers, make_rule, ...) -> stepper.Stepper."""
  made = []

  def make(num_ps, num_workers, make_rule, **settings):
    cluster = make_cluster(num_ps, num_workers)
    made.append(stepper.Stepper(cluster, make_rule, **settings))
    return made[-1]

  yield make
  for each in made:
    each.close()


@pytest.fixture(scope='session')
def _runner():
  shared = runner.Runner()
  yield shared
  shared.close()


@pytest.fixture
def tasks(_runner):
  """The runner.Runner of real tasks; ends what the test leaves running."""
  yield _runner
  _runner.kill_all()


@pytest.fixture
def make_real_cluster(tasks, tmp_path):
  """Returns make(num_ps, num_workers) -> runner.Cluster."""
  with contextlib.ExitStack() as stack:

    def make(num_ps, num_workers):
      cluster = runner.Cluster(tasks, tmp_path, num_ps, num_workers)
      return stack.enter_context(contextlib.closing(cluster))

    yield make


@pytest.fixture(scope='session')
def running_store():
  with object_store.running() as store:
    yield store


@pytest.fixture
def store(running_store, monkeypatch):
  """An object store that this process finds; see support/object_store.py."""
  for name, value in running_store.environ.items():
    monkeypatch.setenv(name, value)
  running_store.requests.clear()
  yield running_store
  running_store.trouble = lambda method, path: None
