"""Checks before the start whether sparse tables fit in the ps's memory."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.nn import groups as groups_lib
from distmnist.nn import optimizers, sparse_updates
from distmnist.tables import key_map, shard_slices, sparse_table, touched_rows

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

_PS_MEMORY_MIB = flags.DEFINE_integer(
  'ps_memory_mib',
  None,
  'MiB of memory that each ps may fill with sparse tables and what the '
  'optimizer keeps beside them: a model that needs more is refused before it '
  'starts. By default all ps together, or without a ps the process that '
  'trains, may fill the memory of this machine; ps on other machines have no '
  'limit.',
  lower_bound=1,
)
_LOCAL = '127.0.0.1', 'localhost', '::1'
# What restores a shard makes a tensor whose shape is int32.
_MOST_ROWS = 2**31 - 1
_LIMIT_FILE = pathlib.Path('/sys/fs/cgroup/memory.max')


def check(
  cluster: cluster_lib.Cluster, groups: Sequence[groups_lib.Group] = ()
) -> None:
  """Checks the tables of the default graph.

  Raises:
    cli.UsageError: names a table and what to do.
  """
  tables = tf.get_collection(sparse_table.TABLES)
  for shard in tables:
    num_rows = int(shard.shape[0])
    if num_rows > _MOST_ROWS:
      num_ps = cluster.num_ps
      place = f'on a ps, with {num_ps} ps' if num_ps else 'in this process'
      raise cli.UsageError(
        f'the sparse table {sparse_table.find_name(shard)!r} has {num_rows:,} '
        f'rows {place}; expected at most {_MOST_ROWS:,}: take more ps or '
        'fewer rows'
      )
  limit = _find_limit(cluster)
  if not tables or limit is None:
    return
  sizes = _find_sizes(groups)
  num_ps = cluster.num_ps
  needed = sum(sizes.values()) / max(1, num_ps)
  if needed > limit:
    largest = max(sizes, key=sizes.__getitem__)
    group = next(
      _find_group(shard, groups)
      for shard in tables
      if sparse_table.find_name(shard) == largest and not key_map.is_keys(shard)
    )
    raise cli.UsageError(
      f'the sparse tables, of which {largest!r} is the largest, take '
      f'{needed / 2**20:,.0f} MiB '
      + (f'on each of {num_ps} ps' if num_ps else 'in this process')
      + f' with {optimizers.show_table_optimizer(group)}, but the limit is '
      f'{limit / 2**20:,.0f} '
      '(--ps_memory_mib): take more ps with memory of their own, fewer or '
      'narrower rows, or sgd, which keeps nothing beside them'
    )


def _find_group(
  shard: tf.Variable, groups: Sequence[groups_lib.Group]
) -> groups_lib.Group | None:
  return groups_lib.find(groups, groups_lib.find_name(shard))


def _find_sizes(groups: Sequence[groups_lib.Group]) -> dict[str, int]:
  """Returns {name of a table: bytes, once all of its rows exist}."""
  sizes = collections.Counter()
  for shard in tf.get_collection(sparse_table.TABLES):
    size = shard_slices.count_bytes(shard)
    if not key_map.is_keys(shard):
      group = _find_group(shard, groups)
      optimizer = optimizers.choose(group, is_table=True).optimizer
      size *= 1 + sparse_updates.NUM_SLOTS.get(optimizer, 0)
    sizes[sparse_table.find_name(shard)] += size
  for keys, size in _find_beside():
    sizes[sparse_table.find_name(keys)] += size
  for touched in touched_rows.get_all():
    sizes[sparse_table.find_name(touched.rows)] += touched.num_bytes
  return sizes


def _find_beside() -> Iterator[tuple[tf.Variable, int]]:
  """Yields (keys, bytes) for what tables of keys need besides their rows."""
  for found in key_map.get_all(tf.get_default_graph()):
    yield found.keys, int(found.keys.shape[0]) * found.new_rows.bytes_beside


def describe_growth(num_ps: int) -> str | None:
  """Returns a line on the tables that create rows; None without any."""
  beside = list(_find_beside())
  if not beside:
    return None
  names = list(
    dict.fromkeys(sparse_table.find_name(keys) for keys, _ in beside)
  )
  more = sum(size for _, size in beside) / max(1, num_ps)
  return (
    f'tables that grow ({", ".join(names)}): the memory of all rows is taken '
    f'at the start; their keys need up to {more:,.0f} bytes more a ps'
  )


def _find_limit(cluster: cluster_lib.Cluster) -> float | None:
  """Returns the bytes that each ps may use, or None if unknown.

  Without a ps it is what this process may use.
  """
  if _PS_MEMORY_MIB.value is not None:
    return _PS_MEMORY_MIB.value * 2**20
  hosts = [host.rpartition(':')[0].strip('[]') for host in cluster.ps_hosts]
  if not all(host in _LOCAL for host in hosts):
    return None
  return read_memory() / max(1, cluster.num_ps)


def read_memory() -> int:
  """Returns the bytes of memory of this machine, or of this container."""
  found = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  with contextlib.suppress(OSError, ValueError):  # 'max' is not a number.
    found = min(found, int(_LIMIT_FILE.read_text()))
  return found
