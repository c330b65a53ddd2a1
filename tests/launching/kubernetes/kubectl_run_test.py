"""A run by kubectl: one that plays a cluster and checks how it is called."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from distmnist.common import cli
from distmnist.launching.kubernetes import kubectl_run
from tests.support import kube_answers
from tests.support.background import Running, last_line
from tests.support.kube_answers import make_end, make_object, make_pod
from tests.support.manifests import make, make_options
from tests.support.paths import PYTHONPATH

CHIEF = 'mnist-worker-0-x'


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  monkeypatch.setattr(kubectl_run, 'TICK_SECS', 0.01)
  return kube_answers.Cluster(tmp_path, monkeypatch)


def run(kind='job', **fields):
  options = make_options(kind=kind, namespace='ml', **fields)
  return kubectl_run.run(options, make(kind=kind), 'kind: Job\n')


@pytest.mark.slow
def test_the_chief_is_shown_and_its_success_is_ours(cluster, capfd, caplog):
  waiting = make_pod(CHIEF, waiting={'reason': 'ContainerCreating'})
  cluster.play(
    ({'kind': 'Job'}, []),
    ({'kind': 'Job'}, [waiting]),
    ({'kind': 'Job'}, [make_pod(CHIEF, running={})]),
    (make_object('Job', 'Complete'), [make_pod(CHIEF, terminated=make_end(0))]),
  )
  assert run() == 0
  assert capfd.readouterr().out.startswith(f'the log of {CHIEF}\n')
  assert caplog.messages == [
    'job/mnist-worker-0 is created: the log of the chief follows',
    f'not started yet: {CHIEF}: ContainerCreating',
  ]
  assert cluster.calls[0] == (
    ['--namespace', 'ml', 'apply', '-f', '-'],
    'kind: Job\n',
  )
  assert not any('delete' in words for words, _ in cluster.calls)


def test_who_failed_first_is_named_and_the_chief_gives_the_code(
  cluster, caplog
):
  ended = make_end(137, '2026-01-01T00:00:01Z', 'OOMKilled')
  cluster.play(
    (
      make_object('JobSet', 'Failed'),
      [
        make_pod('mnist-ps-0-0-y', terminated=ended),
        make_pod('mnist-chief-0-0-x', terminated=make_end(3)),
      ],
    )
  )
  assert run('jobset') == 3
  assert caplog.messages[-1] == (
    'error: mnist-ps-0-0-y failed first: exit code 137 (OOMKilled)'
  )


def test_a_chief_that_was_replaced_is_followed_too(cluster, capfd):
  first = make_pod('mnist-worker-0-a', '1', terminated=make_end(137))
  second = make_pod('mnist-worker-0-b', '2', terminated=make_end(0))
  cluster.play(
    ({'kind': 'Job'}, [first]),
    (make_object('Job', 'Complete'), [first, second]),
  )
  assert run() == 0
  assert capfd.readouterr().out == (
    'the log of mnist-worker-0-a\nthe log of mnist-worker-0-b\n'
  )


@pytest.mark.slow
def test_a_log_that_breaks_off_goes_on(cluster, capfd):
  running = ({'kind': 'Job'}, [make_pod(CHIEF, running={})])
  done = make_object('Job', 'Complete'), [make_pod(CHIEF, running={})]
  cluster.play(*[running] * 8, done)
  assert run() == 0
  assert f'the log of {CHIEF}\nmore of {CHIEF}\n' in capfd.readouterr().out


def test_a_run_that_fails_with_no_pod_left_fails(cluster, caplog):
  cluster.play((make_object('Job', 'Failed'), []))
  assert run() == 1
  assert 'job/mnist-worker-0 has failed; see kubectl' in caplog.messages[-1]


def test_a_run_that_somebody_deletes_is_an_error(cluster):
  cluster.play(({}, []))
  with pytest.raises(cli.RunError, match='was deleted by somebody else'):
    run()


def command(*words):
  return [
    *(sys.executable, '-m', 'distmnist.launch', '--launcher=kubernetes'),
    *('--kube_name=mnist', '--kube_image=a', '--module=fake_train', '--apply'),
    *(*words, '--'),
  ]


@pytest.mark.slow
def test_ctrl_c_has_the_tasks_save_and_removes_the_run(cluster, tmp_path):
  """The real program: the tasks go first, then what is left of the run."""
  chief = make_pod('mnist-worker-0-forever', running={})
  cluster.play(({'kind': 'Job'}, [chief]))
  env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  with Running(tmp_path, command(), env=env) as running:
    running.wait_for_files('followed')
    running.send(signal.SIGINT)
    assert running.process.wait(60) == 130
  assert last_line(running.stderr.read_text()) == (
    'distmnist.launch: SIGINT: the tasks are told to save and leave'
  )
  tasks, rest = [words for words, _ in cluster.calls if words[0] == 'delete']
  jobs = [f'job/mnist-{task}' for task in ('ps-0', 'worker-0', 'worker-1')]
  assert tasks == ['delete', *jobs, '--ignore-not-found', '--wait=false']
  assert rest[:3] == ['delete', '-f', '-']


def test_a_chief_that_could_not_save_gives_its_code(
  cluster, tmp_path, monkeypatch, caplog
):
  monkeypatch.setattr(kubectl_run, 'END_TICK_SECS', 0.01)
  cluster.play(({'kind': 'Job'}, []))
  leaving = [make_pod(CHIEF, terminated=make_end(75))]
  (tmp_path / 'leaving.json').write_text(json.dumps(leaving))
  collecting = contextlib.nullcontext
  monkeypatch.setattr(
    kubectl_run.signals,
    'collecting',
    lambda signals: collecting(signals.append(signal.SIGTERM)),
  )
  assert run() == 75
  assert caplog.messages[-1].startswith('not all is saved: see')


@pytest.mark.slow
def test_a_dry_run_applies_nothing(cluster, tmp_path):
  env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  done = subprocess.run(
    command('--dry_run'), env=env, capture_output=True, text=True, timeout=60
  )
  assert done.returncode == 0
  assert 'kind: Job' in done.stdout
  assert not (tmp_path / 'calls').exists()
