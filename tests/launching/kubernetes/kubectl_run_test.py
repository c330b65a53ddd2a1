"""A run by kubectl: one that plays a cluster and checks how it is called."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from distmnist.common import cli
from distmnist.launching.kubernetes import kubectl, kubectl_run, run_status
from tests.support import kube_answers, programs
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
  fields = {'kind': kind, 'launch': 'ours', **fields}
  options = make_options(namespace='ml', **fields)
  return kubectl_run.run(options, make(**fields), 'kind: Job\n')


@pytest.mark.slow
def test_the_chief_is_shown_and_its_success_is_ours(cluster, capfd, caplog):
  waiting = make_pod(CHIEF, waiting={'reason': 'ContainerCreating'})
  cluster.play(
    (make_object('Job'), []),
    (make_object('Job'), [waiting]),
    (make_object('Job'), [make_pod(CHIEF, running={})]),
    (make_object('Job', 'Complete'), [make_pod(CHIEF, terminated=make_end(0))]),
  )
  assert run() == 0
  assert capfd.readouterr().out.startswith(f'the log of {CHIEF}\n')
  assert caplog.messages == [
    'job/mnist-worker-0 is created: the log of the chief follows',
    f'not started yet: {CHIEF}: ContainerCreating',
  ]
  for call, verb in zip(cluster.calls, ['get', 'create'], strict=False):
    assert call[0][:5] == ['--namespace', 'ml', verb, '-f', '-']
    assert call[1] == 'kind: Job\n'
  assert not any('delete' in words for words, _ in cluster.calls)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_chief_that_was_replaced_is_followed_too(cluster, capfd):
  first = make_pod('mnist-worker-0-a', '1', terminated=make_end(137))
  second = make_pod('mnist-worker-0-b', '2', terminated=make_end(0))
  cluster.play(
    (make_object('Job'), [first]),
    (make_object('Job', 'Complete'), [first, second]),
  )
  assert run() == 0
  assert capfd.readouterr().out == (
    'the log of mnist-worker-0-a\nthe log of mnist-worker-0-b\n'
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'path', 'pod'),
  [
    ('Job', 'job/mnist-worker-0', 'mnist-worker-0-x'),
    ('JobSet', 'jobset/mnist', 'mnist-chief-0-0-x'),
    ('TrainJob', 'trainjob/mnist', 'mnist-chief-0-0-x'),
  ],
)
def test_the_end_of_each_kind_is_seen(cluster, capfd, caplog, kind, path, pod):
  end = {'TrainJob': 'Complete', 'Job': 'Complete', 'JobSet': 'Completed'}[kind]
  others = [make_pod('mnist-ps-0-0-a', running={})]
  pods = [*others, make_pod(pod, terminated=make_end(0))]
  cluster.play((make_object(kind, end), pods))
  assert run(kind.lower()) == 0
  assert capfd.readouterr().out == f'the log of {pod}\n'
  assert caplog.messages[0].startswith(f'{path} is created')


@pytest.mark.slow
def test_a_log_that_breaks_off_goes_on(cluster, capfd):
  running = (make_object('Job'), [make_pod(CHIEF, running={})])
  done = make_object('Job', 'Complete'), [make_pod(CHIEF, running={})]
  cluster.play(*[running] * 8, done)
  assert run() == 0
  assert f'the log of {CHIEF}\nmore of {CHIEF}\n' in capfd.readouterr().out


@pytest.mark.slow
def test_a_run_that_fails_with_no_pod_left_fails(cluster, caplog):
  cluster.play((make_object('Job', 'Failed'), []))
  assert run() == 1
  assert 'job/mnist-worker-0 has failed; see kubectl' in caplog.messages[-1]


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
  cluster.play((make_object('Job'), [chief]))
  env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  with Running(tmp_path, command(), env=env) as running:
    running.wait_for_files('followed')
    running.send(signal.SIGINT)
    assert running.process.wait(60) == 130
  assert last_line(running.stderr.read_text()) == (
    'distmnist.launch: SIGINT: the tasks are told to save and leave'
  )
  tasks, rest = [words for words, _ in cluster.calls if words[0] == 'delete']
  assert tasks[1] == 'job'
  assert rest[1] == 'networkpolicy,service,job'
  [text] = [text for words, text in cluster.calls if words[0] == 'create']
  launch = tasks[3].partition(',launch=')[2]
  for document in yaml.safe_load_all(text):
    assert document['metadata']['labels']['launch'] == launch
    if document['kind'] == 'Job':
      template = document['spec']['template']
      assert template['metadata']['labels']['launch'] == launch


@pytest.mark.slow
def test_a_chief_that_could_not_save_gives_its_code(
  cluster, tmp_path, monkeypatch, caplog
):
  monkeypatch.setattr(kubectl_run, 'END_TICK_SECS', 0.01)
  cluster.play((make_object('Job'), []))
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


def find_verbs(cluster):
  return [words[2] for words, _ in cluster.calls]


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['job', 'jobset'])
def test_a_run_of_this_name_is_left_as_it_is(cluster, tmp_path, kind):
  theirs = make_object('Job', 'Complete', name='mnist-ps-0')
  theirs['metadata']['creationTimestamp'] = '2026-01-01T00:00:00Z'
  (tmp_path / 'exists.json').write_text(json.dumps([theirs]))
  with pytest.raises(
    cli.RunError,
    match='^job/mnist-ps-0 of --kube_name=mnist exist on Kubernetes since '
    '2026-01-01T00:00:00Z, and are left .* delete .* --selector run=mnist$',
  ):
    run(kind)
  (tmp_path / 'exists.json').write_text(json.dumps([theirs] * 3))
  with pytest.raises(cli.RunError, match='^job/mnist-ps-0 and 2 more objects'):
    run(kind)
  assert find_verbs(cluster) == ['get', 'get']


@pytest.mark.parametrize(
  'script', ['echo Forbidden: job >&2; exit 1', 'exec sleep 9']
)
def test_what_cannot_be_created_as_a_whole_is_removed(
  tmp_path, monkeypatch, script
):
  """Also if another launcher was faster, or the server does not answer."""
  monkeypatch.setattr(kubectl, 'ANSWER_SECS', 0.5)
  monkeypatch.setattr(kubectl_run, '_SECS_PER_OBJECT', 0)
  path = programs.make(
    tmp_path,
    kubectl=f'echo "$@" >>{tmp_path}/calls\n'
    f'if [ "$3" = create ]; then {script}; fi',
  )
  monkeypatch.setenv('PATH', path)
  with pytest.raises(cli.RunError, match='^kubectl create'):
    run()
  calls = (tmp_path / 'calls').read_text().splitlines()
  assert calls[2:] == [
    '--namespace ml delete networkpolicy,service,job --selector '
    'run=mnist,launch=ours --ignore-not-found --wait=false'
  ]


def test_nothing_is_created_where_it_is_not_known_what_is_there(
  tmp_path, monkeypatch
):
  script = f'echo "$3" >>{tmp_path}/calls; echo away >&2; exit 1'
  monkeypatch.setenv('PATH', programs.make(tmp_path, kubectl=script))
  with pytest.raises(cli.RunError, match='^kubectl get: away$'):
    run()
  assert (tmp_path / 'calls').read_text() == 'get\n'


@pytest.mark.slow
def test_a_run_that_somebody_deletes_is_an_error(cluster):
  cluster.play((make_object('Job', 'Complete', name='mnist-worker-1'), []))
  with pytest.raises(cli.RunError, match='was deleted by somebody else'):
    run()


@pytest.mark.slow
def test_a_dry_run_applies_nothing(cluster, tmp_path):
  env = {**os.environ, 'PYTHONPATH': PYTHONPATH}
  done = subprocess.run(
    command('--dry_run'), env=env, capture_output=True, text=True, timeout=200
  )
  assert done.returncode == 0
  assert 'kind: Job' in done.stdout
  assert not (tmp_path / 'calls').exists()


def test_no_kubectl_is_said(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(cli.RunError, match='kubectl on .*, which --apply needs'):
    kubectl.Kubectl('apply')


def test_it_is_the_users_with_the_namespace(monkeypatch, tmp_path):
  path = programs.make(tmp_path, kubectl='echo "$@"; cat')
  monkeypatch.setenv('PATH', path)
  client = kubectl.Kubectl('apply', 'ml')
  said = client.change('create', '-f', '-', text='a: 1')
  assert said == '--namespace ml create -f -\na: 1'


def test_what_it_refuses_is_told_in_its_words(monkeypatch, tmp_path):
  path = programs.make(tmp_path, kubectl='echo "no rights:" >&2; exit 1')
  monkeypatch.setenv('PATH', path)
  with pytest.raises(cli.RunError, match='^kubectl create: no rights:$'):
    kubectl.Kubectl('apply').change('create', '-f', '-')


@pytest.mark.parametrize(
  ('script', 'found'),
  [
    ('echo \'{"items": [1]}\'', [1]),
    ('echo \'{"kind": "Job"}\'', [{'kind': 'Job'}]),
    ('true', []),
    ('exit 1', None),
    ('exec sleep 9', None),
  ],
)
def test_a_look_may_have_no_answer(monkeypatch, tmp_path, script, found):
  monkeypatch.setenv('PATH', programs.make(tmp_path, kubectl=script))
  monkeypatch.setattr(kubectl, 'ANSWER_SECS', 0.5)
  assert kubectl.Kubectl('apply').get('job') == found


@pytest.mark.parametrize(
  ('is_new', 'words'),
  [(True, 'logs --follow pod/a'), (False, 'logs --follow --tail=0 pod/a')],
)
def test_a_log_goes_to_the_screen(monkeypatch, tmp_path, capfd, is_new, words):
  monkeypatch.setenv('PATH', programs.make(tmp_path, kubectl='echo "$@"'))
  assert kubectl.Kubectl('apply').follow('a', is_new).wait() == 0
  sys.stdout.flush()
  assert capfd.readouterr().out == f'{words}\n'


@pytest.mark.slow
def test_a_signal_once_the_run_has_ended_ends_nothing(cluster, monkeypatch):
  cluster.play(
    (make_object('Job', 'Complete'), [make_pod(CHIEF, terminated=make_end(0))])
  )
  find = run_status.find_outcome

  def interrupt(found):
    signal.raise_signal(signal.SIGINT)
    return find(found)

  monkeypatch.setattr(run_status, 'find_outcome', interrupt)
  assert run() == 0
  assert not any('delete' in words for words, _ in cluster.calls)


@pytest.mark.slow
def test_a_server_that_is_away_for_a_while_is_asked_again(
  cluster, monkeypatch, caplog
):
  monkeypatch.setattr(kubectl_run, 'SILENT_SECS', -1)
  monkeypatch.setattr(kubectl_run, 'END_TICK_SECS', 0.01)
  cluster.play((make_object('Job'), [make_pod(CHIEF, running={})]))
  real, refusals = kubectl.Kubectl.change, {'get': 3, 'delete': 2}

  def change(self, *words, **how):
    if words[1] != '-f' and refusals.get(words[0]):
      refusals[words[0]] -= 1
      raise cli.RunError(f'kubectl {words[0]}: no route')
    if words[0] == 'get' and not refusals['get']:
      refusals['get'] = None
      signal.raise_signal(signal.SIGTERM)
    return real(self, *words, **how)

  monkeypatch.setattr(kubectl.Kubectl, 'change', change)
  assert run() == 143
  said = [line for line in caplog.messages if 'no route' in line]
  assert said == [
    'nothing is known of the run for now, asking on: kubectl get: no route'
  ]
  assert sum('delete' in words for words, _ in cluster.calls) == 2
