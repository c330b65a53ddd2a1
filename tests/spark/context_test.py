"""A fake pyspark stands for Spark: no JVM is started."""

import functools
import os
import signal
import sys
import types

import pytest

from distmnist.common import cli, command_line
from distmnist.spark import context


@pytest.mark.parametrize(
  ('name', 'is_secret'),
  [
    ('spark.ssl.keyStorePassword', True),
    ('spark.authenticate.secret', True),
    ('spark.hadoop.fs.s3a.access.key', True),
    ('spark.executorEnv.API_TOKEN', True),
    ('spark.ssl.keyStore', False),
    ('spark.task.cpus', False),
  ],
)
def test_who_tells_a_secret_by_its_name(name, is_secret):
  assert command_line.is_secret(name) == is_secret
  hidden = f'{name}=...' if is_secret else f'{name}=a=b'
  assert command_line.hide_secret(f'{name}=a=b') == hidden


CONF = {
  'spark.master': 'local-cluster[2,1,512]',
  'spark.my.password': 'hunter2',
}


class FakeConf:
  def __init__(self, load_defaults):
    assert not load_defaults
    self.settings = {}

  def setAll(self, pairs):  # noqa: N802 (as Spark calls it)
    self.settings.update(pairs)
    return self


class FakeJvm:
  """The process of a JVM, its stdin and the gateway to it, all in one."""

  def __init__(self, calls, conf, popen):
    self.conf = conf
    popen['stderr'].write(b'WARN of Spark\n')
    self.proc = self.stdin = self
    self._calls = calls

  def shutdown(self):
    self._calls.append('shutdown')

  def close(self):
    self._calls.append('close stdin')

  def wait(self, timeout_secs=None):
    self._calls.append(f'wait {timeout_secs}')

  def kill(self):
    self._calls.append('kill')


END_OF_JVM = ['shutdown', 'close stdin', 'wait 10.0', 'kill', 'wait None']


@pytest.fixture
def calls(monkeypatch, tmp_path):
  """Puts a pyspark in place that notes its calls; returns these, a list."""
  noted = []

  class FakeContext:
    applicationId = 'app-7'  # noqa: N815 (as Spark calls it)
    _gateway = None
    error = None

    def __init__(self, conf, gateway):
      type(self)._gateway = gateway
      self.conf, self.jvm = conf, gateway
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      if self.error:
        raise self.error

    def stop(self):
      noted.append('stop')
      raise ConnectionError('the JVM is dead')

  pyspark = types.ModuleType('pyspark')
  pyspark.__file__ = str(tmp_path / 'pyspark' / '__init__.py')
  pyspark.SparkConf, pyspark.SparkContext = FakeConf, FakeContext
  pyspark.java_gateway = types.ModuleType('pyspark.java_gateway')
  pyspark.java_gateway.launch_gateway = functools.partial(FakeJvm, noted)
  monkeypatch.setitem(sys.modules, 'pyspark', pyspark)
  monkeypatch.setitem(sys.modules, 'pyspark.java_gateway', pyspark.java_gateway)
  monkeypatch.setenv('SPARK_LOCAL_IP', '127.0.0.9')
  monkeypatch.setenv('PYSPARK_PYTHON', 'python9')
  monkeypatch.delenv('SPARK_HOME', raising=False)
  (tmp_path / 'pyspark' / 'work' / 'app-7' / '0').mkdir(parents=True)
  (tmp_path / 'pyspark' / 'work' / 'app-6').mkdir()
  return noted


def list_work(tmp_path):
  return sorted(os.listdir(tmp_path / 'pyspark' / 'work'))


def test_secrets_are_kept_from_the_command_line_of_the_jvm(calls, tmp_path):
  with context.opened(CONF, str(tmp_path)) as sc:
    assert sc.conf.settings == CONF
    assert sc.jvm.conf.settings == {'spark.master': CONF['spark.master']}


def test_its_end_is_the_end_of_the_jvm(calls, tmp_path, capfd):
  handler = signal.getsignal(signal.SIGINT)
  with context.opened(CONF, str(tmp_path)):
    assert signal.getsignal(signal.SIGINT) == handler
    assert calls == []
    assert list_work(tmp_path) == ['app-6', 'app-7']
    os.write(2, b'a line of ours\n')
  # Whatever comes of `stop`.
  assert calls == ['stop', *END_OF_JVM]
  assert list_work(tmp_path) == ['app-6']
  assert (tmp_path / 'spark.log').read_text() == 'WARN of Spark\n'
  assert capfd.readouterr().err == 'a line of ours\n'


def test_what_the_executors_of_a_failed_run_have_left_stays(calls, tmp_path):
  with pytest.raises(ZeroDivisionError), context.opened(CONF, str(tmp_path)):
    raise ZeroDivisionError
  assert calls == ['stop', *END_OF_JVM]
  assert list_work(tmp_path) == ['app-6', 'app-7']


def test_spark_that_does_not_start_is_one_line(calls, tmp_path, monkeypatch):
  handler = signal.getsignal(signal.SIGINT)
  monkeypatch.setattr(
    sys.modules['pyspark'].SparkContext,
    'error',
    OSError('no port\nat Foo.java'),
  )
  with (
    pytest.raises(cli.RunError) as caught,
    context.opened(CONF, str(tmp_path)),
  ):
    pass
  log = tmp_path / 'spark.log'
  assert str(caught.value) == f'Spark does not start: no port; log: {log}'
  assert signal.getsignal(signal.SIGINT) == handler
  assert calls == END_OF_JVM


@pytest.mark.parametrize(
  ('master', 'ip', 'python'),
  [
    ('local[2]', '127.0.0.1', sys.executable),
    ('spark://host:7077', None, None),
  ],
)
def test_executors_on_this_machine_get_its_address_and_our_python(
  calls, tmp_path, monkeypatch, master, ip, python
):
  # So that the end of the test takes away what is set.
  for name in ('SPARK_LOCAL_IP', 'PYSPARK_PYTHON'):
    monkeypatch.delenv(name)
  with context.opened({'spark.master': master}, str(tmp_path)):
    assert os.environ.get('SPARK_LOCAL_IP') == ip
    assert os.environ.get('PYSPARK_PYTHON') == python


def test_what_the_user_has_set_for_executors_stays(calls, tmp_path):
  with context.opened({'spark.master': 'local[2]'}, str(tmp_path)):
    assert os.environ['SPARK_LOCAL_IP'] == '127.0.0.9'
    assert os.environ['PYSPARK_PYTHON'] == 'python9'
