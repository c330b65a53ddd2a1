"""stop_grace: which waits for which, and for how long."""

import pytest
from absl import flags

from distmnist.cluster import stop_request
from distmnist.common import cli, stop_grace
from distmnist.common.names import TRAIN
from distmnist.launching import jobs


def test_the_default_is_that_of_the_flag():
  assert stop_request.STOP_GRACE_SECS.default == stop_grace.DEFAULT_SECS
  assert stop_grace.parse([]) == stop_grace.DEFAULT_SECS


def test_the_bound_is_that_of_the_flag():
  assert stop_grace.parse(['--stop_grace_secs=2']) == 2.0
  with pytest.raises(cli.UsageError, match='--stop_grace_secs=1.9: expected'):
    stop_grace.parse(['--stop_grace_secs=1.9'])
  with pytest.raises(cli.UsageError, match='--stop_grace_secs=x: expected'):
    stop_grace.parse(['--stop_grace_secs', 'x'])
  values = flags.FlagValues()
  values['stop_grace_secs'] = flags.FLAGS['stop_grace_secs']
  with pytest.raises(flags.IllegalFlagValueError, match='2.0'):
    values(['train', '--stop_grace_secs=1.9'])


@pytest.mark.parametrize('secs', [2.0, 8.0, 25.0, 600.0])
def test_each_waits_longer_than_whom_it_waits_for(secs):
  assert stop_grace.for_save(secs) < secs
  for wait in (
    *(stop_grace.for_worker, stop_grace.for_remote, stop_grace.for_orphans),
  ):
    assert wait(secs) > secs


def test_by_default_all_is_over_within_the_ten_seconds_of_docker_stop():
  worker_secs = stop_grace.for_worker(stop_grace.DEFAULT_SECS)
  assert worker_secs + stop_grace.PS_SECS < 10
  assert stop_grace.for_orphans(stop_grace.DEFAULT_SECS) <= 10


@pytest.mark.parametrize(
  ('given', 'module', 'expected'),
  [
    ((), TRAIN, (25.0, ['--stop_grace_secs=25'])),
    (('--stop_grace_secs=9',), TRAIN, (9.0, [])),
    ((), 'my.program', (8.0, [])),
  ],
)
def test_a_system_that_kills_sets_the_grace_of_its_tasks(
  given, module, expected
):
  job = jobs.Job(given=given, module=module)
  assert stop_grace.choose(job, 30, 5) == expected


def test_tasks_have_a_little_time_where_a_system_gives_none():
  secs, _ = stop_grace.choose(jobs.Job(), 3, 5)
  assert secs == stop_grace.MIN_SECS


def test_a_ps_has_less_than_a_worker_unless_it_is_alone():
  assert stop_grace.for_job(False, {'ps', 'worker'}, 8.0) == 8.5
  assert stop_grace.for_job(True, {'ps', 'worker'}, 8.0) == stop_grace.PS_SECS
  assert stop_grace.for_job(True, {'ps'}, 8.0) == 8.5
