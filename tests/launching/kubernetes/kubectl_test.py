import sys

import pytest

from distmnist.common import cli
from distmnist.launching.kubernetes import kubectl
from tests.support import programs


def test_no_kubectl_is_said(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(cli.RunError, match='no kubectl on this machine: install'):
    kubectl.Kubectl(None)


def test_it_is_the_users_with_the_namespace(monkeypatch, tmp_path):
  path = programs.make(tmp_path, kubectl='echo "$@"; cat')
  monkeypatch.setenv('PATH', path)
  client = kubectl.Kubectl('ml')
  said = client.change('create', '-f', '-', text='a: 1')
  assert said == '--namespace ml create -f -\na: 1'


def test_what_it_refuses_is_told_in_its_words(monkeypatch, tmp_path):
  path = programs.make(tmp_path, kubectl='echo "no rights:" >&2; exit 1')
  monkeypatch.setenv('PATH', path)
  with pytest.raises(cli.RunError, match='^kubectl create: no rights:$'):
    kubectl.Kubectl(None).change('create', '-f', '-')


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
  assert kubectl.Kubectl(None).get('job') == found


@pytest.mark.parametrize(
  ('is_new', 'words'),
  [(True, 'logs --follow pod/a'), (False, 'logs --follow --tail=0 pod/a')],
)
def test_a_log_goes_to_the_screen(monkeypatch, tmp_path, capfd, is_new, words):
  monkeypatch.setenv('PATH', programs.make(tmp_path, kubectl='echo "$@"'))
  assert kubectl.Kubectl(None).follow('a', is_new).wait() == 0
  sys.stdout.flush()
  assert capfd.readouterr().out == f'{words}\n'
