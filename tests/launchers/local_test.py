import pytest

from distmnist.common import cli
from distmnist.launchers import local


def refuse():
  raise OSError('cannot create a network namespace: unshare: a test')


def test_auto_says_that_it_isolates(monkeypatch, caplog):
  monkeypatch.setattr(local.network_namespace, 'make_namespace', lambda: 'made')
  assert local.make_namespace('auto') == 'made'
  assert len(caplog.messages) == 1


def test_auto_says_why_it_does_not_isolate(monkeypatch, caplog):
  monkeypatch.setattr(local.network_namespace, 'make_namespace', refuse)
  assert local.make_namespace('auto') is None
  (line,) = caplog.messages
  assert 'unshare: a test' in line and 'docs/cluster.md' in line


def test_on_fails_where_it_is_not_allowed(monkeypatch):
  monkeypatch.setattr(local.network_namespace, 'make_namespace', refuse)
  with pytest.raises(
    cli.RunError, match='--isolate=on, but cannot create .*: a test: ask'
  ):
    local.make_namespace('on')
