"""A worker that is started again as its run ends, or later, has no work left.

Its ps have left or are about to, and it would wait for them in vain.
"""

import contextlib
import logging
import os

from distmnist.cluster import probing
from distmnist.common import cli
from distmnist.common.names import ATTEMPT

_log = logging.getLogger(__name__)


def has_ended(cluster, restart):
  """Whether a worker was started again after the end of its run.

  Args:
    cluster: cluster.Cluster.
    restart: restart.Restart.
  """
  ps = cluster.addresses('ps')
  return (
    ATTEMPT in os.environ
    and not cluster.is_chief
    and bool(ps)
    and restart.is_finished()
    and len(probing.find_silent(ps)) == len(ps)
  )


@contextlib.contextmanager
def forgiven(cluster, restart):
  """Lets a worker that came as the last ps left end without an error.

  Args:
    cluster, restart: see `has_ended`.
  """
  try:
    yield
  except cli.RunError:
    if not has_ended(cluster, restart):
      raise
    _log.info('the run has ended')
