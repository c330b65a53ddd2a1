"""Which variables count, where several are set."""

import re

import pytest

from distmnist.cluster import task_environment
from distmnist.cluster.identity import Identity
from distmnist.cluster.task_environment import read


def test_what_is_set_first_of_all_counts():
  assert task_environment.find({}) == []
  assert read({}) is None
  assert read({'TF_CONFIG': ' ', 'DISTMNIST_NUM_PS': ''}) is None
  both = {'TF_CONFIG': '{}', 'DISTMNIST_NUM_PS': 'x'}
  assert task_environment.find(both) == ['TF_CONFIG', 'DISTMNIST_NUM_PS']
  assert read(both) == Identity('TF_CONFIG')


def test_a_launcher_forgets_the_role_of_its_own_process():
  environ = {
    'TF_CONFIG': '{}',
    'DISTMNIST_NUM_PS': '1',
    'DISTMNIST_ATTEMPT': '2',
    'DISTMNIST_MIN_WORKERS': '1',
    'HOME': '/',
  }
  task_environment.forget(environ)
  assert environ == {'HOME': '/'}
  task_environment.forget(environ)


# Slurm.


SLURM = {'SLURM_PROCID': '1', 'SLURM_NTASKS': '4', 'SLURM_STEP_ID': '0'}


@pytest.mark.parametrize(
  ('environ', 'line'),
  [
    (SLURM, 'of a Slurm step .*DISTMNIST_NUM_PS is not set: it trains alone'),
    (SLURM | {'SLURM_STEP_NUM_TASKS': '4'}, 'SLURM_STEP_NUM_TASKS'),
    (
      {'OMPI_COMM_WORLD_RANK': '1', 'OMPI_COMM_WORLD_SIZE': '4'},
      'of a run of mpirun .*it trains alone',
    ),
    ({'PMI_RANK': '1', 'PMI_SIZE': '4'}, 'mpirun'),
    ({'RANK': '1', 'WORLD_SIZE': '4'}, 'torchrun'),
  ],
)
def test_one_of_several_that_trains_alone_says_so(environ, line):
  said = task_environment.describe_alone(environ)
  assert said.startswith('this is process 1 of 4 of ')
  assert re.search(line, said)


@pytest.mark.parametrize(
  'environ',
  [
    {},
    {'SLURM_PROCID': '0', 'SLURM_NTASKS': '4'},  # The script of a job.
    SLURM | {'SLURM_PROCID': '0', 'SLURM_NTASKS': '1'},
    {'RANK': 'colonel', 'WORLD_SIZE': '4'},
    {'WORLD_SIZE': '4'},
  ],
)
def test_one_alone_says_nothing(environ):
  assert task_environment.describe_alone(environ) is None
