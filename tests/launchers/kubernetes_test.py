"""The manifests as they are printed, and the flags that they come from.

After an intended change, renew the golden files:

  RENEW_GOLDEN=1 python -m pytest tests/launchers/kubernetes_test.py
"""

import os
import pathlib
import re
import sys

import pytest

from distmnist.launching.kubernetes import yaml_text
from tests.support import in_process, manifests
from tests.support.manifests import container_of, flags_of, templates_of
from tests.support.runner import SMALL, read_report

yaml = pytest.importorskip('yaml')

GOLDEN = pathlib.Path(__file__).parent / 'golden'
CLAIMS = '--kube_data_claim=mnist-data --kube_logs_claim=mnist-logs'
IMAGE = '--kube_image=distmnist:1'
LOGS = f'{IMAGE} --kube_logs_claim=logs'
each_kind = pytest.mark.parametrize('kind', manifests.KINDS)


@pytest.fixture
def run(launch_here):
  """Returns run(words of launch, words of train) -> (code, stdout, stderr)."""
  words = '--launcher=kubernetes', '--kube_name=mnist'
  return lambda flags='', train=(): launch_here(
    *words, *flags.split(), '--', *train
  )


@pytest.fixture
def render(run):
  """Returns render(words of launch, words of train) -> list of dicts."""

  def render(flags='', train=()):
    code, out, err = run(f'{IMAGE} {CLAIMS} {flags}', train)
    assert (code, err) == (0, '')
    return list(yaml.safe_load_all(out))

  return render


@pytest.mark.parametrize(
  ('file', 'flags', 'train'),
  [
    (
      'job.yaml',
      '--num_ps=1 --num_workers=2 --kube_image=registry.example.com/distmnist:1'
      ' --kube_namespace=ml --kube_gpus=1 --kube_data_claim=mnist-data'
      ' --kube_logs_claim=mnist-logs --max_restarts=5',
      ['--model=cnn', '--strategy=sync_sgd', '--epochs=2', '--note=a b'],
    ),
    (
      'jobset.yaml',
      '--kind=jobset --num_ps=2 --num_workers=3 --kube_image=distmnist:1'
      ' --kube_logs_claim=mnist-logs --kube_gpus=1 --max_restarts=5'
      ' --kube_queue=team --kube_cpu=500m --evaluator',
      ['--model=cnn', '--logdir=/logs/mnist/first'],
    ),
    (
      'trainjob.yaml',
      '--kind=trainjob --num_ps=1 --num_workers=2 --kube_image=distmnist:1'
      ' --kube_logs_claim=mnist-logs --kube_queue=team',
      ['--model=cnn'],
    ),
  ],
)
def test_the_manifests_are_those_of_the_golden_file(run, file, flags, train):
  code, out, err = run(flags, train)
  assert (code, err) == (0, '')
  if os.environ.get('RENEW_GOLDEN'):
    (GOLDEN / file).write_text(out)
  assert out == (GOLDEN / file).read_text(), (
    f'{file} is another one now: read the difference, and if it is meant:'
    ' RENEW_GOLDEN=1 python -m pytest tests/launchers/kubernetes_test.py'
  )


def test_each_flag_becomes_an_option(run, monkeypatch):
  seen = []
  monkeypatch.setattr(
    yaml_text, 'write', lambda job, options, _: seen.append(options) or ''
  )
  flags = '--kind=trainjob --kube_namespace=ml --kube_gpus=3 --kube_queue=team'
  flags += ' --kube_cpu=3 --kube_memory=5Gi --kube_ps_cpu=4'
  flags += ' --kube_ps_memory=6Gi'
  assert run(f'{IMAGE} {CLAIMS} {flags}', ['--stop_grace_secs=9'])[0] == 0
  chosen = '--start_timeout_secs=600', '--logdir=/logs/mnist'
  assert seen == [
    manifests.make_options(
      kind='trainjob',
      namespace='ml',
      resources={
        'ps': {'cpu': '4', 'memory': '6Gi'},
        'worker': {'cpu': '3', 'memory': '5Gi'},
      },
      gpus=3,
      queue='team',
      stop_grace_secs=9.0,
      train_flags=(*chosen, '--data_dir=/data', '--stop_grace_secs=9'),
    )
  ]


@each_kind
def test_a_flag_of_train_that_is_given_wins(render, kind):
  train = ['--start_timeout_secs=5', '--num_gpus=1', '--logdir=/logs/a/b']
  train += ['--intra_op_parallelism_threads=9', '--data_dir=/data/mine']
  documents = render(f'--kind={kind} --kube_gpus=2', train)
  for template in templates_of(documents).values():
    assert container_of(template)['args'][-5:] == train
    flags = flags_of(template)
    assert flags['start_timeout_secs'] == '5'
    assert flags['intra_op_parallelism_threads'] == '9'


def test_the_flagfile_is_read_here_and_not_in_the_pod(render, tmp_path):
  (tmp_path / 'a.flags').write_text('# a\n--model=cnn\n--logdir=/logs/file\n')
  documents = render(train=[f'--flagfile={tmp_path}/a.flags', '--epochs=1'])
  for template in templates_of(documents).values():
    args = container_of(template)['args']
    assert args[-3:] == ['--model=cnn', '--logdir=/logs/file', '--epochs=1']
    assert not any('flagfile' in word for word in args)


def test_nothing_of_our_environment_is_printed(run, monkeypatch):
  monkeypatch.setenv('WANDB_API_KEY', 'hush-hush')
  monkeypatch.setenv('DISTMNIST_TOKEN', 'hush-hush')
  code, out, err = run(IMAGE)
  assert code == 0
  assert 'hush' not in out + err


def test_without_a_volume_it_says_what_may_be_lost(run):
  code, out, err = run(IMAGE)
  assert code == 0
  assert 'persistentVolumeClaim' not in out
  assert 'logdir' not in out
  (line,) = err.splitlines()
  assert '--kube_logs_claim' in line


def test_a_dry_run_is_the_same(run):
  assert run(f'{IMAGE} --dry_run') == run(IMAGE)


def test_no_pyyaml_is_said_before_anything_is_printed(run, monkeypatch):
  monkeypatch.setitem(sys.modules, 'yaml', None)
  code, out, err = run(f'{IMAGE} --dry_run')
  assert (code, out) == (1, '')
  (line,) = err.splitlines()
  assert 'distmnist[kubernetes]' in line


@pytest.mark.parametrize(
  ('flags', 'train', 'error'),
  [
    (f'{IMAGE} --kube_name=7up', '', 'kube_name=7up: .* starting with a let'),
    (f'{IMAGE} --kube_name=a-', '', 'kube_name=a-: .* not ending with a dash'),
    (f'{IMAGE} --kube_name={"a" * 52}', '', 'expected up to 51 lowercase'),
    (f'{IMAGE} --kube_namespace=a.b', '', 'kube_namespace=a.b: expected'),
    (f'{IMAGE} --kube_data_claim=A', '', 'kube_data_claim=A: expected a name'),
    (f'{IMAGE} --kube_logs_claim=a/b', '', 'kube_logs_claim=a/b: expected'),
    (f'{IMAGE} --kube_cpu=0m', '', 'kube_cpu=0m: expected CPUs above 0'),
    (f'{IMAGE} --kube_ps_cpu=two', '', 'kube_ps_cpu=two: .* such as 2'),
    (f'{IMAGE} --kube_memory=4GB', '', 'kube_memory=4GB: .* such as 4Gi'),
    (f'{IMAGE} --kube_ps_memory=0', '', 'kube_ps_memory=0: .* such as 4Gi'),
    (f'{IMAGE} --kube_queue=a/b', '', 'kube_queue=a/b: expected a name of'),
    (f'{IMAGE} --kind=tfjob', '', '--kind=tfjob: .*<job|jobset|trainjob>'),
    (f'{IMAGE} --kube_ttl_secs=9', '', "Unknown .* flag 'kube_ttl_secs'"),
    (f'{IMAGE} --kube_patch=none.yaml', '', 'kube_patch=none.yaml: .*No such'),
    (f'{IMAGE} --logs_dir=/tmp/x', '', '--logs_dir=/tmp/x: .* kubectl logs'),
    (f'{IMAGE} --evaluator', '', 'evaluator has .* --kube_logs_claim too'),
    (LOGS, '--logdir=/tmp/a', 'at /logs: give --logdir=/logs/a, or leave'),
    (LOGS, '--logdir=logs/a', '--logdir=logs/a is not on the volume logs'),
    (LOGS, '--logdir=/logs/../a', 'is not on the volume logs'),
    (LOGS, '--logdir=/logs2', 'is not on the volume logs'),
    (
      f'{IMAGE} --kube_data_claim=data',
      '--data_dir=/mnt/mnist',
      'the volume data, which is mounted at /data: give --data_dir=/data/mnist',
    ),
    (LOGS, '--resume=never', '--resume=never: a Pod that replaces a lost one'),
    (IMAGE, '--num_gpus=1', '--num_gpus=1, but a worker has --kube_gpus=0'),
  ],
)
def test_a_mistake_is_told_before_anything_is_printed(run, flags, train, error):
  code, out, err = run(flags, train.split())
  assert (code, out) == (2, '')
  (line,) = err.splitlines()
  assert re.search(error, line)


@pytest.mark.slow
def test_the_commands_of_the_manifests_train(render, tasks, tmp_path):
  """What the Pods would run, here: names and folders are those of this host."""
  train = [*SMALL, '--train_steps=40']
  jobs = templates_of(render('--num_workers=1 --kube_cpu=1', train))
  ports = in_process.pick_ports(len(jobs))
  here = {
    f'{name}:2222': f'127.0.0.1:{port}'
    for name, port in zip(jobs, ports, strict=True)
  }
  here |= {'/logs': str(tmp_path), '/data': f'{tmp_path}/data'}
  started = []
  for name, template in jobs.items():
    container = container_of(template)
    assert container['command'] == ['python', '-m', 'distmnist.train']
    words = container['args']
    for there, value in here.items():
      words = [word.replace(there, value) for word in words]
    env = {e['name']: e['value'] for e in container['env']}
    env['HOME'] = str(tmp_path)
    started.append(tasks.start(tmp_path / f'{name}.log', *words, **env))
  assert tasks.wait(*started) == [0] * 2, [task.output for task in started]
  assert read_report(tmp_path / 'mnist')['workers_not_heard_of'] == []
