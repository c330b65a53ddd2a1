import fnmatch
import functools
import glob

import pytest

from distmnist.common import cli
from distmnist.launching import gpus, jobs

FOUR = [f'/dev/nvidia{i}' for i in range(4)] + ['/dev/nvidiactl']


@pytest.mark.parametrize(
  ('wanted', 'visible', 'files', 'expected'),
  [
    ('auto', None, [], None),
    ('auto', None, FOUR, ['0', '1', '2', '3']),
    ('auto', '3,1', FOUR, ['3', '1']),
    ('auto', '', FOUR, None),
    ('2', None, [], ['0', '1']),
    ('1', '3,1', FOUR, ['3']),
    ('0', None, FOUR, []),
  ],
)
def test_gpus_are_found(monkeypatch, wanted, visible, files, expected):
  monkeypatch.setattr(glob, 'glob', functools.partial(fnmatch.filter, files))
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  assert gpus.find_gpus(wanted, environ) == expected


def test_more_gpus_than_this_launcher_may_use_are_refused():
  with pytest.raises(cli.UsageError, match='--gpus=3, but .*=0,1 names 2'):
    gpus.find_gpus('3', {'CUDA_VISIBLE_DEVICES': '0,1'})


def test_gpus_are_shared_out_a_host_at_a_time():
  cluster = jobs.make_tasks(['a:1'], ['a:2', 'b:1', 'a:3', 'a:4'], [])
  assert [task.env for task in gpus.share_on_hosts(cluster, None)] == [()] * 5
  devices = [
    dict(t.env)['CUDA_VISIBLE_DEVICES'] for t in gpus.share_on_hosts(cluster, 2)
  ]
  assert devices == ['', '0', '0', '1', '0']
  devices = [
    dict(t.env)['CUDA_VISIBLE_DEVICES'] for t in gpus.share_on_hosts(cluster, 0)
  ]
  assert devices == [''] * 5
