"""What of this machine each trial has, and which flags are not for it."""

import pytest

from distmnist.common import cli
from distmnist.sweeps import local_backend


@pytest.mark.parametrize(
  'gpus, num_parallel, shares',
  [
    (['0', '1', '2'], 2, [['0', '2'], ['1']]),
    (['4', '5'], 3, [['4'], ['5'], ['4']]),
    (['0'], 1, [['0']]),
    ([], 2, [[], []]),
  ],
)
def test_the_trials_share_the_gpus(gpus, num_parallel, shares):
  found = [
    local_backend.share_gpus(gpus, num_parallel, i) for i in range(num_parallel)
  ]
  assert found == shares


def test_flags_of_another_runner_are_refused(set_flags):
  set_flags('--spark_conf=spark.a=b')
  message = '--spark_conf is for --runner=spark'
  with pytest.raises(cli.UsageError, match=message):
    local_backend.from_flags(1, 'distmnist.train', is_launched=False)


def test_trials_share_the_cores_and_the_gpus(set_flags, monkeypatch):
  monkeypatch.setattr(
    local_backend.os, 'sched_getaffinity', lambda _: range(12)
  )
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  set_flags('--gpus=3')
  backend = local_backend.from_flags(2, 'fake_train', is_launched=False)
  assert (backend.num_cores, backend.forked_module) == (6, 'fake_train')
  assert backend.find_env(0) == {'CUDA_VISIBLE_DEVICES': '0,2'}
  assert backend.find_env(1) == {'CUDA_VISIBLE_DEVICES': '1'}
  set_flags('--gpus=0')
  backend = local_backend.from_flags(99, 'fake_train', is_launched=False)
  assert backend.num_cores == 1
  assert backend.find_env(0) == {'CUDA_VISIBLE_DEVICES': ''}


def test_a_launch_is_not_forked_and_other_machines_have_cores(set_flags):
  set_flags('--launcher=ssh')
  backend = local_backend.from_flags(1, 'fake_train', is_launched=True)
  assert (backend.num_cores, backend.forked_module) == (None, '')
