"""The contract, and the hosts that keep it."""

import inspect

import pytest

from distmnist.common import cli
from distmnist.launching.forking import fork_client
from distmnist.launching.supervisor import task_host
from tests.support.fake_host import FakeHost


def test_the_contract_has_no_host_of_its_own():
  with pytest.raises(TypeError, match='abstract'):
    task_host.TaskHost()


@pytest.mark.parametrize('kind', [fork_client.ForkServerClient, FakeHost])
@pytest.mark.parametrize('name', sorted(task_host.TaskHost.__abstractmethods__))
def test_a_host_is_called_as_the_contract_says(kind, name):
  assert issubclass(kind, task_host.TaskHost)
  wanted, found = (getattr(k, name) for k in (task_host.TaskHost, kind))
  if not isinstance(wanted, property):
    assert inspect.signature(found) == inspect.signature(wanted)


def test_the_death_of_a_host_may_pass_by_a_restart():
  error = task_host.HostDiedError('the host has died', 'killed by SIGKILL')
  assert isinstance(error, cli.LostError)
  assert (str(error), error.cause) == ('the host has died', 'killed by SIGKILL')
