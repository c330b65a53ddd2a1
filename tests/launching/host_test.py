"""The contract, and the hosts that keep it."""

import inspect

import pytest

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.forking import fork_client
from distmnist.launching.slurm import srun_host
from tests.support.fake_host import FakeHost


def test_the_contract_has_no_host_of_its_own():
  with pytest.raises(TypeError, match='abstract'):
    host_lib.Host()


@pytest.mark.parametrize(
  'kind', [fork_client.ForkServerClient, srun_host.SrunHost, FakeHost]
)
@pytest.mark.parametrize(
  'name', [*sorted(host_lib.Host.__abstractmethods__), 'pid', 'restart']
)
def test_a_host_is_called_as_the_contract_says(kind, name):
  assert issubclass(kind, host_lib.Host)
  wanted, found = (getattr(k, name) for k in (host_lib.Host, kind))
  if not isinstance(wanted, property):
    assert inspect.signature(found) == inspect.signature(wanted)


def test_the_death_of_a_host_may_pass_by_a_restart():
  error = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  assert isinstance(error, cli.LostError)
  assert (str(error), error.cause) == ('the host has died', 'killed by SIGKILL')
