"""The connection to Ray, and how much room it has for tasks."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from distmnist.common import cli, files, ports
from distmnist.common.names import PACKAGE_DIR

_log = logging.getLogger(__name__)


def check_installed() -> None:
  """Raises cli.RunError if this machine lacks ray."""
  if importlib.util.find_spec('ray') is None:
    raise cli.RunError(
      'ray is not installed: pip install distmnist[ray], or pip install ray'
    )


def check_answers(address: str | None) -> None:
  """Checks that something answers where Ray should be.

  Args:
    address: as ray.init takes it, or None.

  Raises:
    cli.UsageError: it is one of the Ray Client, with which nothing was tested.
    cli.RunError: nothing does; Ray itself would try for a minute.
  """
  if address and address.startswith('ray://'):
    raise cli.UsageError(
      f'--ray_address={address} is an address of the Ray Client: expected that'
      ' of the head node itself, such as host:6379, and a machine that reaches'
      ' all nodes'
    )
  if not address or not re.fullmatch(r'.+:\d+', address):
    return  # Ray finds it.
  if not ports.answers(address):
    raise cli.RunError(
      f'no Ray answers at {address}: start it (ray start --head), or check the'
      ' host and the port of --ray_address'
    )


@contextlib.contextmanager
def opened(address: str | None, log: str) -> Iterator[None]:
  """Connects this process to Ray, which then has this copy of distmnist.

  Args:
    address: as ray.init takes it; None for $RAY_ADDRESS, else for a Ray that
      runs on this machine, else for a new one that ends with this.
    log: the path of a file for what Ray itself says.

  Raises:
    cli.RunError: there is no such Ray.
  """
  import ray
  from ray._private import worker

  # Nothing is sent to Ray's makers unless the user has chosen so.
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  # Ray 2.60 has no setting for what it says of its nodes: pages, on stdout.
  worker.print_to_stdstream = functools.partial(_keep, log)
  where = f' at {address}' if address else ''
  _log.info(f'connecting to Ray{where}')
  try:
    ray.init(
      address=address,
      runtime_env={'py_modules': [str(PACKAGE_DIR)]},
      log_to_driver=False,
      logging_level=logging.ERROR,
    )
  except Exception as error:
    said = ' '.join(str(error).split())[:300] or type(error).__name__
    if 'RAY_AUTH_MODE' not in os.environ:
      said += '; if it asks for a token, set RAY_AUTH_MODE=token'
    raise cli.RunError(f'cannot use Ray{where}: {said}') from error
  try:
    yield
  finally:
    ray.shutdown()


def _keep(
  log: str | os.PathLike[str], data: Mapping[str, Sequence[str]], **_: object
) -> None:
  """Adds what Ray says to a log, if there is still a place for it.

  Args:
    log: a path.
    data: its lines are in 'lines'.
  """
  with (
    contextlib.suppress(OSError),
    open(log, 'a', encoding='utf-8', opener=files.no_follow) as file,
  ):
    file.writelines(f'{line}\n' for line in data['lines'])


def choose_gpus(wanted: int | None, num_workers: int) -> int:
  """Returns the GPUs of each worker.

  Args:
    wanted: None for one if Ray has one for each worker, else none.
  """
  import ray

  if wanted is not None:
    return wanted
  return int(ray.cluster_resources().get('GPU', 0) >= num_workers)


def describe_room(bundles: Sequence[Mapping[str, int]]) -> str:
  """Returns what tasks need, and what Ray has.

  Args:
    bundles: such as {'CPU': 1, 'GPU': 1}.
  """
  import ray

  has, free = ray.cluster_resources(), ray.available_resources()
  num_nodes = sum(node['Alive'] for node in ray.nodes())
  parts = []
  for kind in ('CPU', 'GPU'):
    needed = sum(bundle.get(kind, 0) for bundle in bundles)
    if needed:
      parts.append(
        f'{needed:g} {kind}s are needed, at most '
        f'{max(bundle.get(kind, 0) for bundle in bundles):g} on one node, and '
        f'Ray has {has.get(kind, 0):g}, of which {free.get(kind, 0):g} are free'
      )
  return f'{"; ".join(parts)} (nodes: {num_nodes})'
