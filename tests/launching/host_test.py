"""The contract, and the hosts that keep it."""

import inspect

import pytest

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching.forking import fork_client
from distmnist.launching.ray import ray_host
from distmnist.launching.scheduler import job_host
from distmnist.launching.slurm import srun_host
from distmnist.launching.ssh import ssh_host
from distmnist.spark import executor_host, trial_host


def test_the_contract_has_no_host_of_its_own():
  with pytest.raises(TypeError, match='abstract'):
    host_lib.Host()


@pytest.mark.parametrize(
  'kind',
  [
    executor_host.ExecutorHost,
    fork_client.ForkServerClient,
    job_host.JobHost,
    ray_host.RayHost,
    srun_host.SrunHost,
    ssh_host.SshHost,
    trial_host.TrialHost,
  ],
)
def test_a_host_is_called_as_the_contract_says(kind):
  for name in [*host_lib.Host.__abstractmethods__, 'restart']:
    # Evaluated: a module may have its own name for the same type.
    wanted, found = (
      inspect.signature(getattr(k, name), eval_str=True)
      for k in (host_lib.Host, kind)
    )
    assert found == wanted


def test_the_death_of_a_host_may_pass_by_a_restart():
  error = host_lib.HostDiedError('the host has died', 'killed by SIGKILL')
  assert isinstance(error, cli.LostError)
  assert (str(error), error.cause) == ('the host has died', 'killed by SIGKILL')
