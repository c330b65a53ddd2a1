"""Bad input of all kinds: one clear line, never a traceback or a lost file.

The examples are drawn from a fixed seed, so that a failure recurs.
"""

import gzip
import json
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

from distmnist.cluster import cluster, role_flags, slurm_tasks
from distmnist.common import cli
from distmnist.data import idx
from distmnist.launching import gpus, jobs
from distmnist.logdir import checkpoints, run_flags, saving
from distmnist.tables import table_saver
from tests.data.idx_test import IMAGES, LABELS, pack

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


@pytest.mark.slow
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
      role_flags.parse_hosts(ps, 'ps_hosts'),
      role_flags.parse_hosts(workers, 'worker_hosts'),
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


JSON = st.recursive(
  st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.floats(),
    st.text(st.characters(), max_size=8),
  ),
  lambda inner: st.one_of(
    st.lists(inner, max_size=3),
    st.dictionaries(st.text(max_size=5), inner, max_size=3),
  ),
  max_leaves=6,
)


@st.composite
def tf_configs(draw):
  """A TF_CONFIG (dict) that fits, but for up to two things."""
  addresses = (f'h{i}:1' for i in range(9))
  sizes = {
    draw(st.sampled_from(['chief', 'master'])): draw(st.integers(0, 1)),
    'ps': draw(st.integers(0, 2)),
    'worker': draw(st.integers(1, 3)),
    'evaluator': draw(st.integers(0, 1)),
  }
  cluster = {
    job: [next(addresses) for _ in range(size)] for job, size in sizes.items()
  }
  job = draw(st.sampled_from([job for job in sizes if sizes[job]]))
  index = draw(st.integers(0, sizes[job] - 1))
  task = {'type': job, 'index': draw(st.sampled_from([index, str(index)]))}
  config = {'cluster': cluster, 'task': task, 'environment': 'cloud'}
  for _ in range(draw(st.integers(0, 2))):
    place = draw(st.sampled_from([config, cluster, task, cluster['ps']]))
    value = draw(st.one_of(JSON, HOSTS))
    if isinstance(place, list):
      place.append(value)
    else:
      place[draw(st.sampled_from([*place, 'x']))] = value
  return config


@st.composite
def slurm_steps(draw):
  """The variables of a task of a step that fit, but for up to two of them."""
  counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
  environ = {
    'DISTMNIST_NUM_PS': draw(st.integers(0, sum(counts) - 1)),
    'SLURM_STEP_ID': 0,
    'SLURM_PROCID': draw(st.integers(0, sum(counts) - 1)),
    'SLURM_NTASKS': sum(counts),
    'SLURM_STEP_NODELIST': f'n[8-{7 + len(counts)}]',
    'SLURM_STEP_TASKS_PER_NODE': ','.join(map(str, counts)),
  }
  environ = {name: str(value) for name, value in environ.items()}
  for _ in range(draw(st.integers(0, 2))):
    name = draw(st.sampled_from([*environ, 'SLURM_NODEID', 'SLURM_LOCALID']))
    environ[name] = draw(
      st.one_of(
        st.text(st.sampled_from('ab[]-,0129 .é(x)'), max_size=30),
        st.integers(-1, 9).map(str),
      )
    )
  return environ


def make_from_environment(set_flags, capsys, environ):
  """Returns the Cluster by `environ`, or None after one line and code 2."""
  found, codes = [], []
  with flagsaver.flagsaver():
    cli.run(
      lambda: found.append(role_flags.from_flags(environ)),
      ['train', '--num_gpus=0'],
      leave=codes.append,
    )
  set_flags()
  out, err = capsys.readouterr()
  assert codes == [0 if found else 2]
  assert 'Traceback' not in out + err
  assert (out, err.count('\n')) == ('', codes == [2])
  return found[0] if found else None


@pytest.mark.slow
@pytest.mark.parametrize(
  'texts',
  [
    tf_configs().map(json.dumps),
    JSON.map(json.dumps),
    st.text(max_size=30),
    st.builds(
      lambda value, start, end: json.dumps(value)[start:end],
      tf_configs(),
      st.integers(0, 20),
      st.integers(0, 200),
    ),
    st.builds(
      lambda opening, n: opening * n,
      st.sampled_from(['[', '{"cluster":', '9', '"', '{"task":[']),
      st.sampled_from([1, 900, 1000, 5000, 20_000]),
    ),
  ],
  ids=['nearly right', 'json', 'text', 'cut', 'deep'],
)
def test_a_tf_config_makes_a_cluster_or_one_line(set_flags, capsys, texts):
  @fuzz
  @given(text=texts)
  def run(text):
    found = make_from_environment(set_flags, capsys, {'TF_CONFIG': text})
    if not found:
      return
    assert cluster.format_tasks(found)
    hosts = found.ps_hosts + found.worker_hosts
    assert len(set(hosts)) == len(hosts)
    assert not found.num_ps or found.worker_hosts
    if hosts and found.job_name != 'evaluator':
      assert found.address in hosts
      found.spec()

  run()


@pytest.mark.slow
@fuzz
@given(environ=slurm_steps())
def test_the_variables_of_slurm_make_a_cluster_or_one_line(
  set_flags, capsys, environ
):
  found = make_from_environment(set_flags, capsys, environ)
  if found and found.is_distributed:
    assert found.num_ps == int(environ['DISTMNIST_NUM_PS'])
    assert found.num_ps + found.num_workers == int(environ['SLURM_NTASKS'])
    assert cluster.format_tasks(found)


@pytest.mark.slow
@fuzz
@given(data=st.data())
def test_a_node_list_comes_back_as_it_was_compressed(data):
  """Compresses names at random, as Slurm may, and expands them again."""
  texts, expected = [], []
  for _ in range(data.draw(st.integers(1, 4))):
    names, text = [''], ''
    for _ in range(data.draw(st.integers(1, 3))):
      prefix = data.draw(st.text(st.sampled_from('ab-.7'), min_size=1))
      width = data.draw(st.integers(1, 4))
      numbers, ranges = [], []
      for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, 120))
        last = first + data.draw(st.integers(0, 5))
        numbers += [str(n).zfill(width) for n in range(first, last + 1)]
        first = str(first).zfill(width)
        ranges.append(first if int(first) == last else f'{first}-{last}')
      text += f'{prefix}[{",".join(ranges)}]'
      names = [f'{a}{prefix}{n}' for a in names for n in numbers]
    texts.append(text)
    expected += names
  assert slurm_tasks.expand_nodes(','.join(texts)) == expected


def our_names():
  return sorted(flag.name for flag in run_flags.ours())


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


@pytest.mark.slow
@fuzz
@given(words=st.lists(WORDS, max_size=4))
def test_flags_are_taken_or_refused_in_one_line(set_flags, capsys, words):
  # Reading a flagfile is absl's; it may be any file of the machine.
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


@pytest.mark.slow
@fuzz
@given(words=st.lists(WORDS, max_size=4), num_ps=st.integers(0, 3))
def test_flags_of_train_pass_the_launcher_untouched(words, num_ps):
  hosts = [f'127.0.0.1:{2222 + i}' for i in range(num_ps + 2)]
  try:
    found = jobs.make_tasks(hosts[:num_ps], hosts[num_ps:], words, 2)
  except cli.UsageError as error:
    assert "is the launcher's to set" in str(error)
    return
  assert len(found) == num_ps + 2
  for task in found:
    assert list(task.argv[-len(words) :] if words else []) == words
    assert task.command


@pytest.mark.slow
@fuzz
@given(
  wanted=st.sampled_from(['auto', '0', '1', '7']),
  visible=st.one_of(st.none(), st.text('0123456789,- GPU', max_size=12)),
)
def test_gpus_are_shared_out_or_refused_in_one_line(wanted, visible):
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  try:
    found = gpus.find_gpus(wanted, environ)
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


@pytest.mark.slow
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
    images, labels = idx.load(files, 'train', 10)
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
    saver = table_saver.TableSaver('/cpu:0')
    writer = saving.CheckpointWriter(str(folder), 5)
    for number in (3, 9):
      session.run(step.assign(number))
      writer.save(saver, session, number)
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
    found = checkpoints.find_usable(str(folder), checkpoints.find_fault)
  except cli.RunError as error:
    assert 'can be used' in str(error)
  else:
    if found:
      assert checkpoints.read_step(found) in (3, 9)
      assert checkpoints.find_damage(found) is None
  assert {name: (folder / name).read_bytes() for name in names} == before
