"""role_flags: the role that flags, TF_CONFIG or Slurm give this task."""

import glob
import json
import re

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import role_flags
from distmnist.common import cli
from distmnist.lifecycle import consistency


@pytest.mark.parametrize(
  'text, expected',
  [
    (None, ()),
    ('  ', ()),
    ('a:2222', ('a:2222',)),
    ('a:1, 10.0.0.2:65535', ('a:1', '10.0.0.2:65535')),
    ('[::1]:2222', ('[::1]:2222',)),
  ],
)
def test_hosts_are_a_tuple(text, expected):
  assert role_flags.parse_hosts(text, 'ps_hosts') == expected


@pytest.mark.parametrize(
  'entry',
  [
    *('', 'b', ':2222', 'b c:2222', 'http://b:2222', 'ada@b:2222'),
    *(f'b:{port}' for port in ('0', '65536', '-1', 'x', '', '2 2', '²')),
  ],
)
def test_what_is_no_host_and_port_is_shown_with_its_flag(entry):
  with pytest.raises(
    cli.UsageError, match=f'^--ps_hosts: .*{re.escape(repr(entry))}'
  ):
    role_flags.parse_hosts(f'a:1,{entry}', 'ps_hosts')


CLUSTER_FLAGS = '--ps_hosts=p0:1', '--worker_hosts=w0:1,w1:1'


def test_the_flags_make_the_cluster(set_flags, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['a'])
  set_flags(
    *CLUSTER_FLAGS,
    '--job_name=worker',
    '--task_index=1',
    '--start_timeout_secs=2.5',
    '--num_gpus=1',
  )
  assert role_flags.from_flags() == cluster_lib.Cluster(
    ('p0:1',), ('w0:1', 'w1:1'), 'worker', 1, 2.5, 1
  )


def test_no_flags_are_one_process(set_flags):
  set_flags('--num_gpus=0')
  assert role_flags.from_flags() == cluster_lib.Cluster()


CONFIG = json.dumps(
  {
    'cluster': {'ps': ['p0:1'], 'chief': ['w0:1'], 'worker': ['w1:1']},
    'task': {'type': 'worker', 'index': 0},
  }
)
STEP = {
  'DISTMNIST_NUM_PS': '1',
  'SLURM_PROCID': '2',
  'SLURM_STEP_ID': '0',
  'SLURM_NTASKS': '3',
  'SLURM_JOB_NODELIST': 'a,b',
  'SLURM_TASKS_PER_NODE': '2,1',
}


def test_it_makes_no_difference_where_a_role_is_read(set_flags):
  with flagsaver.flagsaver():
    set_flags(
      *CLUSTER_FLAGS, '--job_name=worker', '--task_index=1', '--num_gpus=0'
    )
    by_flags = role_flags.from_flags({'TF_CONFIG': ''})
    # What the tasks of a cluster compare.
    settings = consistency.settings_from_flags(by_flags)
  set_flags('--num_gpus=0')
  by_config = role_flags.from_flags({'TF_CONFIG': CONFIG})
  assert (by_flags.source, by_config.source) == ('flags', 'TF_CONFIG')
  assert by_flags == by_config
  assert settings == consistency.settings_from_flags(by_config)
  assert settings['worker_hosts'] == 'w0:1,w1:1'


@pytest.mark.parametrize(
  'words, environ, source, line',
  [
    ([], {}, '', None),
    (
      [],
      {'RANK': '0', 'WORLD_SIZE': '2'},
      '',
      'this is process 0 of 2 of a run of torchrun by RANK and WORLD_SIZE, but '
      'they give no task its role: it trains alone, as does each of them; for '
      'one training: --job_name, --task_index, --ps_hosts and --worker_hosts',
    ),
    ([], {'TF_CONFIG': CONFIG}, 'TF_CONFIG', None),
    ([], STEP, 'Slurm', None),
    (
      [],
      STEP | {'TF_CONFIG': CONFIG},
      'TF_CONFIG',
      'the cluster is read from TF_CONFIG: DISTMNIST_NUM_PS not used',
    ),
    (
      [*CLUSTER_FLAGS, '--job_name=ps', '--task_index=0'],
      STEP | {'TF_CONFIG': 'no matter what'},
      'flags',
      'the cluster is read from flags: TF_CONFIG, DISTMNIST_NUM_PS not used',
    ),
    (
      ['--worker_hosts='],
      {'TF_CONFIG': CONFIG},
      'flags',
      'the cluster is read from flags: TF_CONFIG not used',
    ),
  ],
)
def test_flags_come_before_tf_config_and_that_before_slurm(
  set_flags, words, environ, source, line, logged
):
  set_flags('--num_gpus=0', *words)
  assert role_flags.from_flags(environ).source == source
  assert logged == ([line] if line else [])


def test_a_ps_of_tf_config_takes_no_gpu(set_flags):
  set_flags('--num_gpus=4')
  config = CONFIG.replace('"type": "worker"', '"type": "ps"')
  found = role_flags.from_flags({'TF_CONFIG': config})
  assert (found.name, found.num_gpus) == ('ps 0', 0)


def test_an_evaluator_is_no_part_of_the_cluster(set_flags):
  set_flags('--num_gpus=0')
  config = CONFIG.replace('"type": "worker"', '"type": "evaluator"')
  found = role_flags.from_flags({'TF_CONFIG': config})
  assert found.name == 'evaluator 0'
  assert not found.is_chief
  assert found.spec().as_dict() == {'ps': ['p0:1'], 'worker': ['w0:1', 'w1:1']}


@pytest.mark.parametrize(
  'job_name, found, expected',
  [('worker', [], 0), ('worker', ['a', 'b'], 1), ('ps', ['a'], 0)],
)
def test_a_worker_takes_a_gpu_where_there_is_one(
  set_flags, monkeypatch, job_name, found, expected
):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: found)
  set_flags(*CLUSTER_FLAGS, f'--job_name={job_name}', '--task_index=0')
  assert role_flags.from_flags().num_gpus == expected


def test_more_gpus_than_there_are_are_refused(set_flags, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['a'])
  set_flags('--num_gpus=2')
  with pytest.raises(cli.UsageError, match='^--num_gpus=2, but .* sees 1 here'):
    role_flags.from_flags()


def test_a_ps_takes_no_gpu_that_it_is_offered(set_flags):
  set_flags(*CLUSTER_FLAGS, '--job_name=ps', '--task_index=0', '--num_gpus=4')
  assert role_flags.from_flags().num_gpus == 0


@pytest.mark.parametrize(
  'words, visible, is_told',
  [([], None, True), ([], '', False), (['--num_gpus=0'], None, False)],
)
def test_a_card_that_tensorflow_cannot_use_is_told_of(
  set_flags, monkeypatch, caplog, words, visible, is_told
):
  monkeypatch.setattr(glob, 'glob', lambda pattern: ['/dev/nvidia0'])
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: [])
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  if visible is not None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
  set_flags(*words)
  assert role_flags.from_flags().num_gpus == 0
  assert ('/dev/nvidia0 is here, but TensorFlow sees no' in caplog.text) is (
    is_told
  )
