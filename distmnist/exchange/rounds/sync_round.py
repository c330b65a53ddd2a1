"""Synchronous aggregation: R workers contribute, the chief applies the mean.

In order: docs/life.md.

SyncReplicasOptimizer does this for the gradients of one step. A Round does it
for any tensors, even in a branch that is taken every T steps: accumulators on
the ps take the mean of the first R contributions to a round and drop late ones;
a thread of the chief applies the mean and hands out tokens; a worker waits for
its token and then pulls.

With R = N each worker either has a token or waits for one, so none contributes
twice to a round. This must still hold when workers die and come back, so the ps
records which workers have a token (`TokenTable`): a successor of one that died
with its token begins with a new one; a successor of one that died waiting takes
the token meant for it. Each worker therefore has its own queue: from a shared
one, a fast worker could take a dead one's token and contribute twice to a
round. The same holds when the chief is replaced, even during an update: see
exchange/rounds/round_entry.py. A worker that died in mid-push had contributed
to some accumulators: the ps of each records this (contributions.py), and its
successor contributes to the others.

What is applied at once, and waited for, is a unit. A round is of one unit,
or of many: then each shard, or several small ones that travel as one message,
is updated and pulled as soon as its own contributions are in (units.py).

With R < N the same queues keep a fast worker from the tokens of a slow one,
with which its gradients would come too late, and the same records keep a worker
from contributing twice. But if another worker takes the place of one that died
in mid-push, some accumulators have one contribution more than others. With R >
N all share one queue, as a worker contributes several times to a round.

The variables that a model updates itself take part in a round as well, without
being given to it: state_means.py. The session hook is in
exchange/rounds/round_hook.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import (
  contributions,
  round_entry,
  round_hook,
  state_means,
  units,
)
from distmnist.exchange.rounds import tokens as tokens_lib
from distmnist.transport import nonfinite, weight_averages, wire

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest
  from distmnist.exchange.copies.local_copies import LocalCopies
  from distmnist.transport.strategy import MarkDone


# In a session.run of the chief, which has several rounds of a small model.
_ROUNDS_PER_RUN, _UNITS_PER_RUN = 5, 20


def make_token(
  cluster: Cluster, global_step: tf.Variable, name: str = 'token'
) -> tf.Variable:
  """Returns this worker's variable on a ps; it starts as the global_step.

  Args:
    global_step: int64 scalar variable, on whose device it is placed.
    name: the first part of its name.
  """
  device = global_step.device
  with tf.device(device):
    return tf.Variable(
      global_step.read_value(),
      trainable=False,
      collections=[tf.GraphKeys.LOCAL_VARIABLES],
      caching_device=device,
      name=f'{name}_of_worker_{cluster.task_index}',
    )


class Round:
  """The accumulators and tokens of a rule.

  Attributes:
    parts: the accumulators whose tensors come together.
    given: contributions.GivenParts of these parts, or None with R > N.
    update_op: the op by which the chief does a round, for `hook`.
    rounds_per_run: how many rounds the chief's thread asks for in a
      session.run: they follow each other on the ps, so the workers need not
      wait for the chief to ask.
    accumulators: (tf.ConditionalAccumulator, device), those given and then
      those of `state_means`.
    state_means: empty unless the model updates variables itself; what updates
      the center runs its update, too.
    pushed: list of ops by which this worker contributes, one for each
      accumulator; known after `push_and_wait`, and only in lock-step or with
      many units.
  """

  def __init__(
    self,
    cluster: Cluster,
    num_contributions: int,
    global_step: tf.Variable,
    accumulators: list[tuple[tf.ConditionalAccumulator, str]],
    token: tf.Variable,
    parts: list[list[int]] | None = None,
    by_unit: bool = False,
  ) -> None:
    """
    Args:
      num_contributions: R.
      global_step: int64 scalar variable, the number of rounds done.
      accumulators: (tf.ConditionalAccumulator, device); a contribution has a
        tensor for each.
      token: int64 local variable, this worker's last token.
      parts: see `parts`; by default each tensor comes by itself.
      by_unit: whether each part is a unit; only with R <= N.
    """
    self.cluster = cluster
    self.num_contributions = num_contributions
    self.global_step = global_step
    self.state_means = state_means.make(cluster)
    self._num_given = len(accumulators)
    self.accumulators = accumulators + self.state_means.accumulators
    self.token = token
    self._by_unit = by_unit
    given = parts or [[i] for i in range(len(accumulators))]
    self.entry = round_entry.Entry(
      cluster, num_contributions, global_step, has_places=by_unit
    )
    device = global_step.device
    of_tokens = cluster, num_contributions, self.entry, device
    # UnitTokens by unit, else Tokens.
    self.tokens: Any
    if by_unit:
      places = [accumulators[part[0]][1] for part in given]
      self.tokens = units.UnitTokens(*of_tokens, places)
    else:
      self.tokens = tokens_lib.make(*of_tokens)
    self.token_table = tokens_lib.TokenTable(cluster, device)
    self.parts = given + [
      [len(accumulators) + i] for i in range(len(self.state_means.accumulators))
    ]
    self.given: contributions.GivenParts | None = None
    if num_contributions <= cluster.num_workers:
      self.given = contributions.GivenParts(
        cluster, [self.accumulators[part[0]][1] for part in self.parts]
      )
    self.update_op: tf.Operation | None = None
    self.rounds_per_run = _ROUNDS_PER_RUN
    if by_unit:
      in_run = _UNITS_PER_RUN // len(given)
      self.rounds_per_run = max(1, min(_ROUNDS_PER_RUN, in_run))
    self.pushed: list[tf.Operation] = []

  def build_update(
    self, apply: Callable[[list[tf.Tensor]], tf.Operation]
  ) -> None:
    """Builds what the chief does with the mean of the contributions.

    Args:
      apply: callable(means) -> op; means is a list of tensors, one per shard,
        on the shard's ps.
    """
    means = []
    for given, device in self.accumulators[: self._num_given]:
      with tf.device(device):
        mean = given.take_grad(self.num_contributions)
        means.append(nonfinite.check_mean(mean, self.cluster.task_index))
    with tf.device(self.global_step.device):
      applied = self.state_means.build_update([apply(means)])
      with tf.control_dependencies(applied):
        count = self.global_step.assign_add(1, read_value=False)
    self.end_update([count])

  def end_update(self, ops: Sequence[tf.Operation | tf.Tensor]) -> None:
    """Makes the next round's tokens follow `ops`, which count the round done.

    They carry the new step, and must not be sent before all is applied.
    """
    with tf.control_dependencies(weight_averages.move_after(ops)):
      self.update_op = self.tokens.end_round()

  def push_and_wait(
    self,
    pairs: Sequence[tuple[tf.Tensor, tf.Variable | None]],
    own_token: tf.Tensor | None = None,
    mark_done: MarkDone = list,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Contributes, and waits for the end of the round; may be in a branch.

    Args:
      pairs: (tensor, shard), one for each accumulator that was given, on its
        ps, as LocalCopies.to_shards returns them.
      own_token: int64 scalar tensor, the value of `token`; read here if None.
      mark_done: see Strategy.mark_done.

    Returns:
      (new_step, staleness): int64 scalar tensors beside the token. staleness is
      0 if the contribution is in an update, or will be in the open round's;
      otherwise it was dropped, and staleness is the number of rounds that it
      missed, or 1 if another chief restarted its round.
    """
    device = self.global_step.device
    if own_token is None:
      own_token = self.token.read_value()
    with tf.device(device):
      own_token = tf.identity(own_token)

    tensors = [tensor for tensor, _ in pairs] + self.state_means.push()
    staleness = self._contribute(tensors, own_token)
    new_token = self.token_table.wait_for_token(
      self.tokens.take, mark_done(self.pushed)
    )
    with tf.device(device), tf.control_dependencies([new_token]):
      # A token left over when the center was set back is ahead of the center.
      new_step = tf.minimum(
        round_entry.step_of(new_token), self.global_step.read_value()
      )
      staleness = round_entry.correct(staleness, own_token, new_token)
      pulled = self.state_means.end_step(is_on_ps=self.token.device == device)
    if self.token.device != device:
      new_token, new_step, staleness = wire.bring_scalars(
        [new_token, new_step, staleness]
      )
    with tf.device(self.token.device):
      taken = self.token.assign(new_token, read_value=False)
      with tf.control_dependencies([taken, *pulled]):
        return tf.identity(new_step), tf.identity(staleness)

  def _contribute(
    self, tensors: Sequence[tf.Tensor], own_token: tf.Tensor
  ) -> tf.Tensor | None:
    """Sets `pushed`; returns the staleness, see Entry.contribute."""
    contribution = contributions.Contribution(self, tensors)
    arrive_first = not (self._by_unit or self.entry.is_lock_step)
    with (
      tf.device(self.global_step.device),
      tf.control_dependencies(tensors if arrive_first else []),
    ):
      own_token = tf.identity(own_token)
      staleness, self.pushed = self.entry.contribute(
        own_token, contribution.apply
      )
    if self._by_unit:
      self.tokens.set_goal(own_token, staleness)
    return staleness

  def build_is_whole(self) -> tf.Tensor:
    """Returns whether no shard is ahead of the others, a bool scalar tensor.

    Until a round is counted, the center may be of two updates, and is not to be
    saved.
    """
    is_whole = []
    if self._by_unit:
      with tf.device(self.global_step.device):
        step = round_entry.step_of(self.entry.read_token())
      is_whole += self.tokens.units.build_are_even(step)
    elif self.given and self.entry.is_lock_step:
      token = self.entry.read_token()
      is_any_taken = contributions.build_is_any_taken(self, self.given, token)
      is_whole.append(~is_any_taken)
    if not self.entry.is_lock_step:  # No update begins before R are in.
      is_whole.append(~self.entry.is_complete())
    with tf.device(self.global_step.device):
      return tf.reduce_all(tf.stack(is_whole))

  def hook(
    self, stop: StopRequest, pull: tf.Operation | None = None
  ) -> round_hook.RoundHook:
    """Returns the RoundHook; to be built while the graph is still open.

    Args:
      pull: op by which the worker pulls the center, or None; for a worker
        whose copy may be older than the token that it begins with.
    """
    return round_hook.RoundHook(self, stop, self.state_means.join_pull(pull))


def make_round(
  cluster: Cluster,
  num_contributions: int,
  global_step: tf.Variable,
  copies: LocalCopies,
) -> Round:
  """Returns the Round of a rule with local copies.

  Args:
    cluster, num_contributions, global_step: see Round.
    copies: a contribution is like its shards.
  """
  accumulators = contributions.make_accumulators(copies.shards)
  token = copies.make_counter(0, 'token')
  return Round(
    *(cluster, num_contributions, global_step, accumulators, token),
    parts=copies.find_units(),
  )
