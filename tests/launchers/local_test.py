import pytest

from distmnist import cli
from distmnist.launchers import local


def refuse():
  raise OSError('no network namespace to be had: unshare: a test')


def test_auto_says_that_it_isolates(monkeypatch, capsys):
  monkeypatch.setattr(local.isolation, 'make_namespace', lambda: 'made')
  assert local.make_namespace('auto') == 'made'
  assert capsys.readouterr().err == (
    'distmnist.launch: the tasks are isolated: they alone can reach their'
    ' ports\n'
  )


def test_auto_says_why_it_does_not_isolate(monkeypatch, capsys):
  monkeypatch.setattr(local.isolation, 'make_namespace', refuse)
  assert local.make_namespace('auto') is None
  assert capsys.readouterr().err == (
    'distmnist.launch: the tasks are not isolated (no network namespace to be'
    ' had: unshare: a test): whoever reaches the ports of the tasks can run'
    ' programs there as you: see docs/security.md for how to shut them\n'
  )


def test_on_fails_where_it_is_not_allowed(monkeypatch):
  monkeypatch.setattr(local.isolation, 'make_namespace', refuse)
  with pytest.raises(
    cli.RunError, match='--isolate=on, but no .*: a test: ask'
  ):
    local.make_namespace('on')


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
def test_gpus_are_found(wanted, visible, files, expected):
  environ = {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible}
  assert local.find_gpus(wanted, environ, files) == expected


def test_more_gpus_than_this_launcher_may_use_are_refused():
  with pytest.raises(cli.UsageError, match='--gpus=3, but .*=0,1 names 2'):
    local.find_gpus('3', {'CUDA_VISIBLE_DEVICES': '0,1'}, [])
