"""This machine as a host of tasks: a fork server of our own."""

import os

from distmnist.common import stop_grace
from distmnist.launching.forking import fork_client


def make_host(
  module,
  logs_dir,
  env,
  fork_tasks=True,
  namespace=None,
  stop_grace_secs=stop_grace.DEFAULT_SECS,
):
  """Returns the TaskHost for the tasks of a launcher on this machine.

  Args:
    module: dotted name, imported once if `fork_tasks`.
    logs_dir: str, an existing folder, for the fork server's own log.
    env: dict, the environment of all tasks.
    fork_tasks: bool, whether to fork tasks from one process instead of starting
      a new Python process for each.
    namespace: network_namespace.Namespace for the tasks that serve, or None.
    stop_grace_secs: float, after which a task that was told to stop forces its
      own exit.
  """
  return fork_client.ForkServerClient(
    module if fork_tasks else '',
    os.path.join(logs_dir, 'fork_server.log'),
    env,
    'its tasks',
    namespace_fds=namespace.fds if namespace else (),
    grace_secs=stop_grace.for_orphans(stop_grace_secs),
  )
