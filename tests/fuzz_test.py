"""Bad input of all kinds: one clear line, never a traceback or a lost file.

The examples are drawn from a fixed seed, so that a failure comes again.
"""

import gzip
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmnist import checkpoints, cli, cluster, idx, tasks
from distmnist.launchers import local
from tests.idx_test import IMAGES, LABELS, pack

fuzz = settings(
  max_examples=100,
  deadline=None,
  derandomize=True,
  database=None,
  suppress_health_check=list(HealthCheck),
)

HOST_CHARACTERS = st.sampled_from('ab1:,[]. /@-\t\0é')
HOSTS = st.one_of(
  st.text(HOST_CHARACTERS, max_size=20),
  st.lists(
    st.builds(
      '{}:{}'.format,
      st.text(HOST_CHARACTERS, max_size=5),
      st.integers(-1, 70000),
    ),
    max_size=4,
  ).map(','.join),
)


@fuzz
@given(
  ps=HOSTS,
  workers=HOSTS,
  job=st.sampled_from(['ps', 'worker', None]),
  index=st.one_of(st.none(), st.integers(-2, 5)),
)
def test_hosts_make_a_cluster_or_one_line(ps, workers, job, index):
  try:
    found = cluster.make_cluster(
      cluster.parse_hosts(ps, 'ps_hosts'),
      cluster.parse_hosts(workers, 'worker_hosts'),
      job,
      index,
    )
  except cli.UsageError as error:
    assert str(error)
    return
  assert found.address == 'this process' or found.address in (
    found.ps_hosts + found.worker_hosts
  )
  assert all(
    1 <= int(address.rpartition(':')[2]) <= 65535
    for address in found.ps_hosts + found.worker_hosts
  )


def our_names():
  return sorted(flag.name for flag in checkpoints.our_flags())


WORDS = st.one_of(
  st.text(max_size=12),
  st.builds(
    '--{}={}'.format,
    st.deferred(lambda: st.sampled_from(our_names())),
    st.one_of(
      st.text(max_size=8),
      st.integers().map(str),
      st.floats().map(str),
      st.sampled_from(['', 'nan', '-1', '0', '1e999', 'true', 'cnn', '/']),
    ),
  ),
)


@fuzz
@given(words=st.lists(WORDS, max_size=4))
def test_flags_are_taken_or_refused_in_one_line(set_flags, capsys, words):
  # That a flagfile is read is absl's; it may be any file of the machine.
  words = [word for word in words if 'flagfile' not in word]
  codes = []
  # A value that was refused stays, and would be refused again.
  with flagsaver.flagsaver():
    cli.run(lambda: None, ['train', *words], leave=codes.append)
  set_flags()
  out, err = capsys.readouterr()
  assert codes in ([0], [2])
  assert 'Traceback' not in out + err
  assert err.count('\n') == (codes == [2])
  for name in ('help', 'helpfull'):
    flags.FLAGS[name].unparse()


@fuzz
@given(words=st.lists(WORDS, max_size=4), num_ps=st.integers(0, 3))
def test_flags_of_train_pass_the_launcher_untouched(words, num_ps):
  hosts = [f'127.0.0.1:{2222 + i}' for i in range(num_ps + 2)]
  try:
    found = tasks.make_tasks(hosts[:num_ps], hosts[num_ps:], words, 2)
  except cli.UsageError as error:
    assert "is the launcher's to set" in str(error)
    return
  assert len(found) == num_ps + 2
  for task in found:
    assert list(task.argv[-len(words) :] if words else []) == words
    assert task.command


@fuzz
@given(
  wanted=st.sampled_from(['auto', '0', '1', '7']),
  visible=st.one_of(st.none(), st.text('0123456789,- GPU', max_size=12)),
)
def test_gpus_are_shared_out_or_refused_in_one_line(wanted, visible):
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  try:
    found = local.find_gpus(wanted, environ, ['/dev/nvidia0'])
  except cli.UsageError as error:
    assert 'CUDA_VISIBLE_DEVICES' in str(error)
    return
  assert found is None or all(isinstance(name, str) for name in found)


def mutate(draw, content):
  """Returns `content` (bytes) cut, lengthened or with some bytes changed."""
  content = bytearray(content)
  for _ in range(draw(st.integers(0, 4))):
    if content:
      content[draw(st.integers(0, len(content) - 1))] = draw(
        st.integers(0, 255)
      )
  cut = draw(st.one_of(st.none(), st.integers(0, len(content))))
  return bytes(content[:cut]) + draw(st.binary(max_size=3))


@fuzz
@given(data=st.data())
def test_idx_files_are_read_or_named(tmp_path, data):
  files = {}
  for name, content in (
    ('train-images-idx3-ubyte', pack(IMAGES)),
    ('train-labels-idx1-ubyte', pack(LABELS)),
  ):
    if data.draw(st.booleans()):
      content = gzip.compress(content, mtime=0)
    files[name] = str(tmp_path / name)
    pathlib.Path(files[name]).write_bytes(mutate(data.draw, content))
  try:
    images, labels = idx.load('mnist', files, 'train', 10)
  except cli.RunError as error:
    assert str(tmp_path) in str(error) and 'expected' in str(error)
    return
  assert images.dtype == np.uint8 and labels.dtype == np.int32
  assert images.shape[1:] == (28, 28, 1) and len(images) == len(labels)
  assert labels.min() >= 0 and labels.max() < 10


@pytest.fixture(scope='module')
def run_folder(tmp_path_factory):
  """A logdir with two checkpoints."""
  folder = tmp_path_factory.mktemp('run')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('w', [20, 3])
    step = tf.train.get_or_create_global_step()
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver()
    for number in (3, 9):
      session.run(step.assign(number))
      checkpoints.save(saver, session, str(folder), number)
  return folder


@pytest.mark.slow
@fuzz
@given(data=st.data())
def test_of_a_damaged_folder_a_whole_checkpoint_is_used_or_none(
  run_folder, tmp_path, data
):
  folder = tmp_path / 'copy'
  shutil.rmtree(folder, ignore_errors=True)
  shutil.copytree(run_folder, folder)
  names = sorted(os.listdir(folder))
  for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
    path = folder / name
    path.write_bytes(mutate(data.draw, path.read_bytes()))
  before = {name: (folder / name).read_bytes() for name in names}
  try:
    found = checkpoints.find_whole(str(folder), lambda line: None)
  except cli.RunError as error:
    assert 'is whole' in str(error)
  else:
    if found:
      assert checkpoints.read_step(found) in (3, 9)
      assert checkpoints.find_damage(found) is None
  assert {name: (folder / name).read_bytes() for name in names} == before
