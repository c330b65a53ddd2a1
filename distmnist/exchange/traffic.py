"""What a step moves between workers and ps, and the least time this takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.tables import sparse_table
from distmnist.transport import variable_lists
from distmnist.transport import wire as wire_lib

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.transport.strategy import Strategy, Update


@dataclasses.dataclass(frozen=True)
class Traffic:
  """What one local step of one worker moves on average.

  Attributes:
    pulled, pushed: bytes.
    num_workers: the workers that each move this much.
    share_of_ps: each ps's share of the bytes; empty without a ps. The sum is
      below 1 where workers exchange with each other.
    has_tables: whether there are sparse tables, whose rows come on top.
    notes: lines for people on how it moves.
    order: apart: a worker pulls and pushes in turn, while others may do the
      opposite. in_turn: all pull, and then all push. at_once: each pulls while
      it pushes.
  """

  pulled: float
  pushed: float
  num_workers: int
  share_of_ps: list[float]
  has_tables: bool = False
  order: str = 'apart'
  notes: list[str] = dataclasses.field(default_factory=list)

  def compute_step_secs(self, bytes_per_sec: float) -> float:
    """Returns the least seconds of a step in which nothing else takes time.

    A link carries B in each direction at the same time, and a ps carries its
    share of all workers' bytes. A push needs the loss, and the loss needs the
    whole pull, unless a rule pulls for the next step. Without a ps both
    directions are used at once.

    Args:
      bytes_per_sec: B, of the link of each host.
    """
    both = self.pulled, self.pushed
    if not self.share_of_ps:
      return max(both) / bytes_per_sec
    of_ps = self.num_workers * max(self.share_of_ps)
    if self.order == 'in_turn':
      return sum(both) * max(1, of_ps) / bytes_per_sec
    of_worker = max(both) if self.order == 'at_once' else sum(both)
    return max(of_worker, of_ps * max(both)) / bytes_per_sec

  @property
  def narrowest(self) -> str:
    """Whose links set the pace if pull and push go at once."""
    of_ps = self.num_workers * max(self.share_of_ps, default=0)
    if of_ps <= 1:
      return 'each worker'
    return f'ps {self.share_of_ps.index(max(self.share_of_ps))}'

  def compute_helps(self, bytes_per_sec: float) -> list[tuple[str, float]]:
    """Returns [(what would help, least seconds of a step then)].

    What saves less than 1 % is left out.

    Args:
      bytes_per_sec: B, of the link of each host.
    """
    if not self.share_of_ps:
      return []
    more, of_all = len(self.share_of_ps) + 1, sum(self.share_of_ps)
    changes = {
      'pull and push at once': {'order': 'at_once'},
      'a ps more': {'share_of_ps': [of_all / more] * more},
      'half the bytes': {'pulled': self.pulled / 2, 'pushed': self.pushed / 2},
    }
    now = self.compute_step_secs(bytes_per_sec)
    each = (
      (name, dataclasses.replace(self, **how).compute_step_secs(bytes_per_sec))
      for name, how in changes.items()
    )
    return [(name, secs) for name, secs in each if secs < 0.99 * now]

  def with_rows(self, pulled: float, pushed: float) -> Traffic:
    """Returns this Traffic plus rows of tables, spread evenly over the ps.

    Args:
      pulled, pushed: the bytes of the rows per step.
    """
    dense, rows = self.pulled + self.pushed, pulled + pushed
    even = rows / max(len(self.share_of_ps), 1)
    return dataclasses.replace(
      self,
      pulled=self.pulled + pulled,
      pushed=self.pushed + pushed,
      share_of_ps=[
        (share * dense + even) / (dense + rows) for share in self.share_of_ps
      ],
    )

  def format(self) -> str:
    """Returns one line for people."""
    rows = ', and rows of its batch' if self.has_tables else ''
    return (
      f'bytes a step: each worker pulls {self.pulled:,.0f} and pushes '
      f'{self.pushed:,.0f}{rows}'
    )


def compute_traffic(
  cluster: Cluster,
  strategy_: Strategy,
  update: Update,
  variables: Iterable[tf.Variable],
) -> Traffic:
  """Returns the Traffic of a strategy.

  Args:
    update: what its `minimize` returned.
    variables: the trained shards.
  """
  if not cluster.num_ps:
    pulled, pushed = update.bytes_pulled, update.bytes_pushed
    if cluster.num_workers == 1:
      pulled = pushed = 0
    return Traffic(
      *(pulled, pushed, cluster.num_workers, []),
      notes=strategy_.describe_exchange(),
    )
  record = graph_record.current()
  of_ps = _count_of_ps(cluster, variables, record.not_pulled)
  pushed_of_ps = _count_of_ps(cluster, variables, record.not_pushed)
  # What bypasses the ps has a worker at both ends.
  with_ps = strategy_.share_with_ps
  pulled, pushed = ((2 - with_ps) * sum(x) for x in (of_ps, pushed_of_ps))
  return Traffic(
    pulled / strategy_.pull_period,
    pushed / strategy_.push_period,
    cluster.num_workers,
    [with_ps * held / max(pulled, 1) for held in of_ps],
    bool(tf.get_collection(sparse_table.TABLES)),
    _find_order(strategy_),
  )


def _count_of_ps(
  cluster: Cluster,
  variables: Iterable[tf.Variable],
  left_out: Iterable[tf.Variable],
) -> list[int]:
  """Returns the bytes on the wire to or from each ps.

  Args:
    cluster, variables: see `compute_traffic`.
    left_out: those that do not travel this way.
  """
  of_ps, wire = [0] * cluster.num_ps, wire_lib.Wire(cluster)
  elsewhere = {
    variable.op.name
    for variable in (
      *tf.get_collection(variable_lists.IN_PLACE),
      *tf.get_collection(sparse_table.TABLES),
      *left_out,
    )
  }
  for variable in variables:
    if variable.op.name not in elsewhere:
      task = tf.DeviceSpec.from_string(variable.device).task
      of_ps[task] += wire.count_bytes([variable])
  return of_ps


def _find_order(strategy_: Strategy) -> str:
  if strategy_.overlaps_exchange:
    return 'at_once'
  return 'in_turn' if strategy_.is_lock_step else 'apart'
