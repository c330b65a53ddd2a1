"""What a fork server is told; real ones are in task_group_test.py."""

import types

import pytest

from distmnist.launching.forking import fork_client, local_host


@pytest.fixture
def told(monkeypatch):
  """The arguments of each ForkServerClient."""
  told = []
  monkeypatch.setattr(
    fork_client,
    'ForkServerClient',
    lambda *args, **more: told.append((args, more)),
  )
  return told


def test_forks_of_one_process_have_its_module(told):
  local_host.make_host('some.module', '/logs', {'A': 'b'}, stop_grace_secs=5)
  assert told == [
    (
      ('some.module', '/logs/fork_server.log', {'A': 'b'}, 'its tasks'),
      {'namespace_fds': (), 'grace_secs': 7.0},
    )
  ]


def test_new_processes_and_a_namespace(told):
  namespace = types.SimpleNamespace(fds=[70, 71])
  local_host.make_host('some.module', '/logs', {}, False, namespace)
  ((module, *_), more) = told[0]
  assert (module, more['namespace_fds']) == ('', namespace.fds)
