"""Which variables count, where several are set."""

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
