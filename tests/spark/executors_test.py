"""Executors: how many tasks they take; paths, and data folders."""

import os

import pytest

from distmnist.common import cli
from distmnist.spark import executors

CLUSTER = 'local-cluster[3,1,1024]'


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
  assert executors.count_fixed_slots(master) == num_slots


def test_too_few_slots_are_said_with_what_to_do():
  executors.check_fixed_slots(CLUSTER, 3)
  executors.check_fixed_slots('yarn', 300)
  with pytest.raises(cli.UsageError, match='has 1 slot, .* has 2 tasks'):
    executors.check_fixed_slots('local', 2)


@pytest.mark.parametrize(
  'flags', [['--logdir=/shared/run', '--data_dir=~/data', '--resume=never'], []]
)
def test_paths_that_all_executors_share_are_fine(flags):
  executors.check_paths(flags)


def test_the_data_folder_of_the_driver_is_that_of_the_executors():
  environ = {'DISTMNIST_DATA_DIR': '/shared/data'}
  found = executors.find_data_dir(['--a=1'], environ)
  assert found == ['--data_dir=/shared/data']
  for given in ['--data_dir=/x'], ['--problem', 'mine.py']:
    assert executors.find_data_dir(given, environ) == []
  assert executors.find_data_dir([], {}) == []
  with pytest.raises(cli.UsageError, match='--data_dir=data is relative'):
    executors.find_data_dir([], {'DISTMNIST_DATA_DIR': 'data'})


@pytest.mark.parametrize('name', ['logdir', 'data_dir', 'resume'])
def test_a_relative_path_is_refused(name):
  with pytest.raises(cli.UsageError, match=f'--{name}=run/1 is relative'):
    executors.check_paths([f'--{name}', 'run/1'])
