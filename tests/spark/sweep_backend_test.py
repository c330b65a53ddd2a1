"""Which sweeps Spark can run, and with what."""

import contextlib
import fcntl
import types

import pytest

from distmnist import sweep
from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.spark import context, executors, spark_job, trial_host
from tests.support.fake_spark import FakeSparkContext

CLUSTER = 'local-cluster[2,1,1024]'


def make_backend(num_trials):
  numbers = ','.join(map(str, range(num_trials)))
  return sweep.make_command(sweep.make_spec([f'a={numbers}'], [])).backend


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (
      ['--master=yarn', '--parallel=2'],
      '--sweep_dir is missing: give a folder',
    ),
    (
      ['--master=yarn', '--sweep_dir=/shared/x'],
      '--parallel is missing: give the number of trials',
    ),
    (
      [f'--master={CLUSTER}', '--sweep_dir=x'],
      '--sweep_dir=x: expected the absolute path of a folder',
    ),
    (
      [f'--master={CLUSTER}', '--parallel=3'],
      'local-cluster[2,1,1024] has 2 slots, but 3 trials run at the same time',
    ),
  ],
)
def test_what_cannot_work_on_spark_is_refused(set_flags, flags, message):
  set_flags('--num_ps=0', '--num_workers=1', '--runner=spark', *flags)
  spec = sweep.make_spec(['a=1,2,3,4'], [])
  with pytest.raises(cli.UsageError) as error:
    sweep.make_command(spec)
  assert message in str(error.value)


def test_a_relative_path_of_a_trial_is_refused(set_flags):
  set_flags(
    *('--num_ps=0', '--num_workers=1', '--runner=spark', '--master=local')
  )
  for words, given in (
    (['a=1'], ['--data_dir=x']),
    (['data_dir=x'], ['--a=1']),
  ):
    with pytest.raises(cli.UsageError, match='--data_dir=x is relative'):
      sweep.make_command(sweep.make_spec(words, given))


def test_flags_of_another_runner_are_refused(set_flags):
  set_flags('--runner=spark', '--master=local', '--gpus=1')
  message = '--gpus=.* is for trials on this machine'
  with pytest.raises(cli.UsageError, match=message):
    make_backend(1)


def test_a_trial_has_the_cores_of_its_slot(set_flags):
  flags = ['--runner=spark', '--num_ps=0', '--num_workers=1']
  set_flags(*flags, '--master=local-cluster[2,4,1024]')
  backend = make_backend(99)
  assert (backend.num_cores, backend.num_parallel) == (1, 8)
  assert make_backend(3).num_parallel == 3
  flags += ['--master=yarn', '--parallel=2', '--sweep_dir=/x']
  set_flags(*flags, '--spark_conf=spark.task.cpus=3')
  assert make_backend(2).num_cores == 3
  set_flags(*flags, '--spark_conf=spark.task.cpus=x')
  with pytest.raises(cli.UsageError, match='expected a number of cores'):
    make_backend(2)


def test_spark_does_not_start_a_trial_again_by_itself(set_flags):
  set_flags('--runner=spark', f'--master={CLUSTER}')
  conf = make_backend(2).conf
  assert conf['spark.task.maxFailures'] == '1'
  assert conf['spark.executor.instances'] == '2'


def test_executors_are_told_where_the_data_is(set_flags, monkeypatch):
  monkeypatch.setenv('DISTMNIST_DATA_DIR', '/data')
  set_flags('--runner=spark', f'--master={CLUSTER}')
  backend = make_backend(2)
  assert backend.find_data_dir([]) == ['--data_dir=/data']
  assert backend.find_data_dir(['--data_dir=/x']) == []


def test_spark_is_checked_by_its_launcher(set_flags, monkeypatch):
  checked = []
  monkeypatch.setattr(sweep.spark, 'check_ready', checked.append)
  set_flags('--runner=spark', f'--master={CLUSTER}')
  backend = make_backend(2)
  assert checked == []  # A dry run needs no Spark.
  backend.check_ready()
  assert checked == [CLUSTER]


@pytest.fixture
def open_host(tmp_path, monkeypatch, set_flags):
  """Returns open(num_slots, **settings of Spark) -> context of a TrialHost."""
  monkeypatch.setattr(executors, 'ship_package', lambda _: None)
  set_flags('--runner=spark', f'--master={CLUSTER}', '--spark_wait_secs=0.05')
  backend = make_backend(2)
  with open(tmp_path / 'lock', 'a+') as lock:

    def open_one(num_slots, **conf):
      sc = FakeSparkContext(**conf)
      monkeypatch.setattr(
        context, 'opened', lambda *_: contextlib.nullcontext(sc)
      )
      monkeypatch.setattr(executors, 'count_slots', lambda _: num_slots)
      return backend.open_host(str(tmp_path), lock, 3.0)

    yield open_one


def test_no_executor_is_said_and_given_up(open_host):
  with (
    pytest.raises(cli.RunError, match='Spark has no executor with a slot'),
    open_host(0),
  ):
    pass


def test_executors_that_come_with_the_work_are_not_waited_for(open_host):
  with open_host(0, spark_dynamicAllocation_enabled='true') as host:
    assert host.is_ready


def test_a_job_has_all_that_its_agent_needs(open_host, monkeypatch):
  monkeypatch.setattr(trial_host, '_TICK_SECS', 0.01)
  jobs = []

  def make_job(sc, rdd, on_end):
    jobs.append(
      types.SimpleNamespace(
        spec=rdd, has_ended=True, error=None, start=lambda: None
      )
    )
    return jobs[-1]

  monkeypatch.setattr(spark_job, 'Job', make_job)
  with open_host(1) as host:
    host.start(host_lib.Request('01', ['python'], {'A': 'b'}, 'log'))
    (job,) = jobs
    assert job.spec['name'] == '01.1'
    assert (job.spec['argv'], job.spec['env']) == (['python'], {'A': 'b'})
    assert job.spec['driver'][0] == '127.0.0.1'
    path, word = job.spec['lock']
    with open(path) as lock:
      assert lock.read() == word
      # Others may have the lock as well, but nobody alone.
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    job.cancel = lambda: None
