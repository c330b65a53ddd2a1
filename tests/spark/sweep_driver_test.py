"""Our end of Spark, without Spark: when it is ready, and what it is given."""

import contextlib
import fcntl

import pytest

from distmnist.common import cli
from distmnist.spark import barrier_job, context, executors, sweep_driver
from distmnist.sweeps import runners
from tests.support.fake_spark import FakeSparkContext


@pytest.fixture
def make_driver(tmp_path, monkeypatch):
  """Returns make(num_slots, **settings of Spark) -> SparkDriver."""
  monkeypatch.setattr(executors, 'ship_package', lambda _: None)
  with open(tmp_path / 'lock', 'a+') as lock:

    def make(num_slots, **conf):
      sc = FakeSparkContext(**conf)
      monkeypatch.setattr(
        context, 'opened', lambda *_: contextlib.nullcontext(sc)
      )
      monkeypatch.setattr(executors, 'count_slots', lambda _: num_slots)
      return sweep_driver.SparkDriver(
        {}, str(tmp_path), lock, 0.05, lambda _: None
      )

    yield make


def test_no_executor_is_said_and_given_up(make_driver):
  with (
    pytest.raises(cli.RunError, match='Spark has no executor with a slot'),
    make_driver(0).opened(None),
  ):
    pass


def test_executors_that_come_with_the_work_are_not_waited_for(make_driver):
  with make_driver(0, spark_dynamicAllocation_enabled='true').opened(None):
    pass


def test_a_job_has_all_that_its_agent_needs(make_driver, monkeypatch, tmp_path):
  monkeypatch.setattr(barrier_job, 'Job', lambda sc, rdd, on_end: rdd)
  driver = make_driver(1)
  command = runners.Command('01', ['python'], 'log', {'A': 'b'})
  with driver.opened(None):
    spec = driver.make_job('01.7', command, 2)
    assert (spec['name'], spec['attempt']) == ('01.7', 2)
    assert (spec['argv'], spec['env']) == (['python'], {'A': 'b'})
    assert spec['driver'] == driver.server.contact['driver']
    assert spec['driver'][0] == '127.0.0.1'
    path, word = spec['lock']
    with open(path) as lock:
      assert lock.read() == word
      # Others may have the lock as well, but nobody alone.
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
