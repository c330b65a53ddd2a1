"""A run in an object store, as docs/remote_storage.md has it."""

import gzip
import json
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

from distmnist.datasets import mnist
from distmnist.logdir import checkpoints, invariants
from distmnist.storage import paths
from tests.support import runner
from tests.support.paths import REPO


def read_commands(bucket):
  """Returns the commands of the page, lists of str."""
  text = (REPO / 'docs' / 'remote_storage.md').read_text()
  block = re.search('```bash\n(.*?)```', text, re.S)[1]
  lines = block.replace('\\\n', ' ').replace('s3://BUCKET', bucket)
  return [shlex.split(line)[2:] for line in lines.splitlines()]


def put_images(url):
  """Puts an MNIST of noise to `url`: 200 images for a training, 100 to test."""
  draw = np.random.default_rng(0)
  for name in mnist.MD5S:
    size = 5200 if name.startswith('train') else 100
    is_images = 'images' in name
    shape = (size, 28, 28) if is_images else (size,)
    header = [0x800 + len(shape), *shape]
    values = draw.integers(0, 256 if is_images else 10, shape, np.uint8)
    content = np.array(header, '>i4').tobytes() + values.tobytes()
    paths.write(f'{url}/{name}.gz', gzip.compress(content, 1))


@pytest.mark.daily
@pytest.mark.slow
def test_the_commands_of_the_page_train_and_export_from_a_bucket(
  tasks, store, tmp_path
):
  bucket = f'{store.url}/{tmp_path.name}'
  put_images(f'{bucket}/data/mnist')
  launch, *others = read_commands(bucket)
  here = tmp_path / 'here'
  here.mkdir()
  done = subprocess.run(
    [sys.executable, '-m', *launch],
    cwd=here,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  for module, *flags in others:
    task = tasks.run(tmp_path / module, *flags, module=module, **store.environ)
    assert task.code == 0, task.output
  assert 'images [n, 28, 28, 1] -> 10 classes' in task.output
  assert paths.exists(f'{bucket}/model/saved_model.pb')
  report = json.loads(paths.read_text(f'{bucket}/run/report.json'))
  assert invariants.check_invariants(report) == []
  assert report['global_step'] == 2
  assert {'ps_0.log', 'worker_0.log', 'worker_1.log'} <= {
    *paths.list_names(f'{bucket}/run/logs')
  }
  assert 'step 2/2' in paths.read_text(f'{bucket}/run/logs/worker_0.log')
  owner = json.loads(
    paths.read_text(f'{bucket}/run/distmnist-files/owner.json.00000001')
  )
  assert owner['has_ended']
  # Nothing of it is written here, under a folder called s3:.
  assert list(here.iterdir()) == []


@pytest.mark.daily
@pytest.mark.slow
def test_a_bucket_without_rights_is_one_line_before_anything_serves(
  tasks, store, tmp_path
):
  store.trouble = lambda method, path: 'denied'
  for module, flags, said in (
    (
      'distmnist.train',
      runner.SMALL,
      '--logdir={}/x cannot be used: Access',
    ),
    ('distmnist.launch', ('--', *runner.SMALL), '--logdir={}/x cannot be used'),
    ('distmnist.train', (), '--data_dir={}/x cannot be read: Access Denied'),
  ):
    flag = '--logdir' if '--logdir' in said else '--data_dir'
    task = tasks.run(
      *(tmp_path / f'{module}{flag}', *flags, f'{flag}={store.url}/x'),
      module=module,
      **store.environ,
    )
    assert task.code == 2
    (line,) = task.output.splitlines()
    assert f'{module}: error: {said.format(store.url)}' in line
  assert len(store.requests) == 3  # A refusal is final.


@pytest.mark.slow
def test_a_run_outlives_troubles_of_its_store_and_its_own_death(
  tasks, store, tmp_path
):
  logdir = f'{store.url}/{tmp_path.name}'
  flags = (*runner.SMALL, f'--logdir={logdir}', '--save_steps=1000')
  other = tasks.run(
    *(tmp_path / 'nowhere', *flags, '--logdir=s3://nowhere/run'),
    **store.environ,
  )
  assert other.code == 2
  assert 'cannot be used: The specified bucket does not exist' in other.output
  first = tasks.start(
    tmp_path / 'first', *flags, '--train_steps=1000000', **store.environ
  )
  runner.wait_for_line(first, 'step ', count=2)
  second = tasks.run(
    tmp_path / 'second', *flags, '--train_steps=2000', **store.environ
  )
  assert second.code == 1
  assert f'--logdir={logdir} is in use by process' in second.last_line
  store.trouble = lambda method, path: '.index' in path and 'busy'
  runner.wait_for_line(first, '; trying again in')
  store.trouble = lambda method, path: None
  seen = checkpoints.list_checkpoints(logdir)
  while checkpoints.list_checkpoints(logdir)[0] in seen:
    pass  # Until the save has gone well.
  tasks.signal(first, signal.SIGKILL)
  tasks.wait(first)
  latest = checkpoints.list_checkpoints(logdir)[0]
  assert checkpoints.find_damage(latest) is None
  steps = checkpoints.parse_step(latest) + 50
  third = tasks.run(
    tmp_path / 'third', *flags, f'--train_steps={steps}', **store.environ
  )
  assert third.code == 0, third.output
  assert f'restored {latest}' in third.output
  report = json.loads(paths.read_text(f'{logdir}/report.json'))
  assert report['global_step'] == steps
  assert report['recoveries'] == 0
  assert len(report['workers'][0]['lives']) == 2
