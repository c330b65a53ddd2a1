"""An update of weights, from a loss to the formula, in one place.

Whatever the optimizer, these come one after the other, each if it is asked for:

  on the worker       1. accumulation: the mean over the slices of a batch
  compute_gradients   2. the sum of repeated rows, of each slice
                      3. clipping by the global norm
  on its way          4. what is not finite goes as zeros, each message by
                         itself (transport/wire.py, nonfinite.py)
  where rules wait    5. the mean of the workers' gradients (exchange/rounds)
  beside the weights  6. weight decay, by the rate as the schedule has it
  apply_gradients     7. the trust ratio of a layer
                      8. the formula (formulas.py) with that rate, on a whole
                         variable by a fused kernel, on rows of a table by
                         itself

A worker's own copy has no way, and so no steps 4 and 5. lars and lamb have 6
and 7 within their formula.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.nn import (
  formulas,
  gradient_accumulation,
  sparse_updates,
  trust_ratio,
)
from distmnist.nn import weight_decay as weight_decay_lib
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import sums

# The rows of tables that are apart (tables/tables_apart.py) count
# other updates than the rest of the model.
_APART = 'tables_apart/'

# Takes (apply, gradient, variable); returns an op in place of that of
# apply(gradient, variable).
ApplyOne = Callable[
  [Callable[[tf.Tensor, tf.Variable], tf.Operation], tf.Tensor, tf.Variable],
  tf.Operation,
]


class Optimizer(tf.train.Optimizer):
  """Any of --optimizer, as a tf.train.Optimizer.

  A worker sends it gradients and no constants: what is known is a number, from
  which each update makes a constant beside its variable. A message often costs
  more than an update.

  Attributes:
    takes_all_norms: whether no shard is updated before the gradients of all of
      them are there.
  """

  def __init__(
    self,
    formula: formulas.Formula,
    rate: float | tf.Tensor,
    clip_norm: float | None = None,
    weight_decay: float = 0.0,
    decay_biases: bool = False,
    use_locking: bool = False,
    is_rate_read_first: bool = False,
    has_scope: bool = True,
  ) -> None:
    """
    Args:
      rate: float or float32 scalar tensor, the learning rate.
      clip_norm: to which the global L2 norm of gradients is scaled down, or
        None.
      weight_decay: of a decay beside the step; see weight_decay.py.
      decay_biases: whether that is also for what has rank 0 or 1.
      use_locking: whether an update locks its variable.
      is_rate_read_first: whether gradients wait until the rate is read. A rule
        may exchange with the center, which counts the global step, between the
        gradients of a local step and their application: the rate would be that
        of before or after the exchange by chance, on some workers of a
        lock-step round and not on others.
      has_scope: whether numbers that are kept once for all variables are named
        after the current name scope, which is that of the rule. Without it a
        run can go on under another rule.
    """
    super().__init__(use_locking, formula.name)
    self.formula = formula
    self.takes_all_norms = isinstance(formula, formulas.LayerFormula)
    number = tf.get_static_value(rate)
    self._rate = rate if number is None else float(number)
    self._clip_norm = clip_norm
    self._weight_decay = weight_decay
    self._min_decay_rank = 0 if decay_biases else 2
    self._is_rate_read_first = is_rate_read_first and number is None
    self._has_scope = has_scope

  def compute_gradients(
    self, loss: tf.Tensor, *args: Any, **kwargs: Any
  ) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """Steps 1 to 3 of the list above.

    Args:
      loss, *args, **kwargs: see tf.train.Optimizer.compute_gradients.

    Returns:
      The list of (gradient, variable); each gradient is a tensor, or None.
    """
    pairs = gradient_accumulation.compute_mean(
      self._compute_whole, loss, *args, **kwargs
    )
    if self._clip_norm is not None:
      pairs = clip(pairs, self._clip_norm)
    if self._is_rate_read_first:
      pairs = [(_wait(gradient, self._rate), v) for gradient, v in pairs]
    return pairs

  def _compute_whole(
    self, loss: tf.Tensor, *args: Any, **kwargs: Any
  ) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """Returns the gradients of a slice, its repeated rows summed up.

    tf.gather gives a gradient of rows, in which a row occurs as often as it was
    looked up: its norm is not that of the gradient, nor could it decay or be
    scaled with its layer. Sparse tables are not concerned: a loss is
    differentiated by their rows in the batch, each once
    (tables/row_exchange.py).
    """
    pairs = super().compute_gradients(loss, *args, **kwargs)
    return [(gradients_lib.make_dense(gradient), v) for gradient, v in pairs]

  def apply_gradients(
    self,
    grads_and_vars: Iterable[tuple[Any, tf.Variable]],
    global_step: tf.Variable | None = None,
    name: str | None = None,
    apply_one: ApplyOne | None = None,
  ) -> tf.Operation:
    """Steps 5 to 8 of the list above.

    Args:
      grads_and_vars: (gradient, tf.Variable); the gradient is a tensor, None,
        or tf.IndexedSlices for rows of a sparse table, each once.
      global_step: tf.Variable that counts the update, or None.
      name: of the op, or None.
      apply_one: callable(apply, gradient, variable) -> op in place of that of
        apply(gradient, variable), for a whole variable; None for no other.

    Returns:
      The op that applies all of them.

    Raises:
      ValueError: no variable has a gradient.
    """
    pairs = [(g, w) for g, w in grads_and_vars if g is not None]
    if not pairs:
      raise ValueError('expected a gradient for one variable or more: got none')
    with tf.init_scope():
      self._create_slots([w for _, w in pairs])
    with tf.name_scope(name, self.get_name()) as scope:
      after = {}
      if isinstance(self.formula, formulas.LayerFormula):
        pairs, after = self._scale_layers(self.formula, pairs)
      find_powers = self._read_powers()
      turns = sparse_updates.begin_turns(
        pairs,
        lambda device: self.formula.find_rate(self._rate, find_powers(device)),
      )

      def update(gradient: tf.Tensor, w: tf.Variable) -> tf.Operation:
        with tf.control_dependencies(self._decay(gradient, w)):
          return self._apply(gradient, w, find_powers, after.get(id(w)))

      updates = []
      for gradient, w in pairs:
        with (
          tf.name_scope(f'update_{w.op.name}'),
          tf.get_default_graph().colocate_with(w),
        ):
          if isinstance(gradient, tf.IndexedSlices):
            update_rows = turns[w.device].update_rows
            updates.append(
              update_rows(self.formula, gradient, w, self._find_slots(w))
            )
          elif apply_one:
            updates.append(apply_one(update, gradient, w))
          else:
            updates.append(update(gradient, w))
      updates += [turn.end() for turn in turns.values()]
      return self._finish_all(updates, global_step, scope)

  def _scale_layers(
    self,
    formula: formulas.LayerFormula,
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]],
  ) -> tuple[
    list[tuple[tf.Tensor, tf.Variable]], dict[int, list[tf.Tensor] | None]
  ]:
    """Makes of gradients the steps of layers, with decay, ratio and rate.

    Returns:
      (pairs, after): the pairs of step and variable, and
      {id(variable): formulas.Kernel.after}.
    """
    steps, after = [], {}
    corrections = None
    if formula.betas:
      powers = self._find_power_variables()
      with tf.device(powers[0].device):  # To another ps goes one message.
        corrections = tf.stack([1 / (1 - power) for power in powers])
    for gradient, w in pairs:
      # By now this step has computed its gradient with the old w.
      with tf.device(w.device), tf.control_dependencies([gradient]):
        step, after[id(w)] = formula.direct(
          w, self._find_slots(w), gradient, corrections
        )
      steps.append((step, w))
    norms = trust_ratio.build_norms(steps)
    scaled = []
    for step, w in steps:
      with tf.device(w.device), tf.control_dependencies([step]):
        step = formula.scale(w, step, norms.get(id(w)), self._rate)
      scaled.append((step, w))
    return scaled, after

  def _decay(
    self, gradient: tf.Tensor, weights: tf.Variable
  ) -> list[tf.Operation]:
    """Returns the list of the ops that a decay beside the step takes."""
    if not self._weight_decay or not weight_decay_lib.decays(
      weights, self._min_decay_rank
    ):
      return []
    factor = self._rate * self._weight_decay
    return [weight_decay_lib.shrink(weights, factor, gradient)]

  def _apply(
    self,
    gradient: tf.Tensor,
    weights: tf.Variable,
    find_powers: Callable[[str], list[tf.Tensor]],
    after: list[tf.Tensor] | None,
  ) -> tf.Operation:
    kernel = formulas.Kernel(
      weights,
      self._find_slots(weights),
      self._rate,
      find_powers(weights.device),
      self._use_locking,
      after,
    )
    applied = self.formula.apply(kernel, gradient)
    if weights.constraint is None:
      return applied
    with tf.control_dependencies([applied]):
      return weights.assign(
        weights.constraint(weights.read_value()), read_value=False
      )

  def list_slots(
    self, variable: tf.Variable
  ) -> list[tuple[formulas.Slot, tf.Variable]]:
    """Returns [(formulas.Slot, tf.Variable)], what is kept beside a variable.

    Nothing is before its first update is built.
    """
    found = [
      (slot, self.get_slot(variable, slot.name)) for slot in self.formula.slots
    ]
    return [(slot, kept) for slot, kept in found if kept is not None]

  def _find_slots(self, variable: tf.Variable) -> list[tf.Variable]:
    return [self.get_slot(variable, slot.name) for slot in self.formula.slots]

  def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
    first = min(var_list, key=lambda variable: variable.name)
    for name, beta in self.formula.betas.items():
      with contextlib.nullcontext() if self._has_scope else tf.name_scope(None):
        power = self._create_non_slot_variable(beta, name, first)
      graph_record.current().other_names[power.op.name] = functools.partial(
        find_other_power, name
      )
    for variable in var_list:
      for slot in self.formula.slots:
        self._get_or_make_slot_with_initializer(
          variable,
          _make_initializer(slot, variable),
          variable.shape,
          variable.dtype.base_dtype,
          slot.name,
          slot.saved_as,
        )

  def _find_power_variables(self) -> list[tf.Variable]:
    with tf.init_scope():  # An update may be in a branch of a tf.cond.
      graph = tf.get_default_graph()
    return [
      self._get_non_slot_variable(name, graph) for name in self.formula.betas
    ]

  def _read_powers(self) -> Callable[[str], list[tf.Tensor]]:
    """Reads the powers of betas once, where they are.

    Another ps gets all of them in one message; it would get two for each of its
    variables.

    Returns:
      callable(device) -> list of float32 scalar tensors on it, like
      formulas.Formula.betas.
    """
    powers = self._find_power_variables()
    if not powers or isinstance(self.formula, formulas.LayerFormula):
      return lambda device: []
    with tf.device(powers[0].device):
      together = tf.stack(powers)

    @functools.cache
    def find(device: str) -> list[tf.Tensor]:
      with tf.device(device):
        return tf.unstack(together, num=len(powers))

    return find

  def _finish_all(
    self,
    updates: Sequence[tf.Operation],
    global_step: tf.Variable | None,
    scope: str,
  ) -> tf.Operation:
    """Returns the op that ends an update, by the name of `scope`.

    What waits for the updates on another ps, as the powers of betas do, gets
    one message from each ps and not one from each update.
    """
    of_device, ends = {}, []
    for op in updates:
      of_device.setdefault(op.device, []).append(op)
    for device, ops in of_device.items():
      with tf.device(device), tf.control_dependencies(ops):
        ends.append(tf.no_op('updated'))
    with tf.control_dependencies(ends):
      powers = zip(
        self._find_power_variables(), self.formula.betas.values(), strict=True
      )
      for power, beta in powers:
        with tf.get_default_graph().colocate_with(power):
          ends.append(power.assign(power * beta, read_value=False))
    return count_update(ends, global_step, scope)


def count_update(
  ends: Sequence[tf.Operation], global_step: tf.Variable | None, scope: str
) -> tf.Operation:
  """Returns the op that ends an update and counts it.

  Args:
    ends: those that wait for all of the update.
    global_step: tf.Variable, or None for no count.
    scope: the op's name, as tf.name_scope gives it.
  """
  if global_step is None:
    return tf.group(*ends, name=scope)
  with (
    tf.control_dependencies([tf.group(*ends, name='update')]),
    tf.get_default_graph().colocate_with(global_step),
  ):
    return global_step.assign_add(1, name=scope, read_value=False)


def find_other_power(name: str, saved: Iterable[str]) -> str | None:
  """Returns a power's name in a checkpoint of other optimizers, or None.

  Args:
    name: without a scope.
    saved: the names in the checkpoint.
  """
  found = [x for x in saved if re.fullmatch(rf'({_APART})?{name}(_\d+)?', x)]
  return min(found, key=lambda x: (x.startswith(_APART), x), default=None)


def _wait(gradient: tf.Tensor | None, rate: tf.Tensor) -> tf.Tensor | None:
  if gradient is None:
    return None
  with tf.device(gradient.device), tf.control_dependencies([rate]):
    return tf.identity(gradient)


def _make_initializer(
  slot: formulas.Slot, variable: tf.Variable
) -> Callable[..., tf.Tensor]:
  begin = slot.begin
  if not callable(begin):
    if begin:
      return tf.constant_initializer(begin)
    return tf.zeros_initializer()

  def initialize(
    shape: Sequence[int],
    dtype: tf.DType | None = None,
    partition_info: Any = None,
  ) -> tf.Tensor:
    del shape, dtype, partition_info
    # If both are initialised at once, this is the value that w will have.
    value = tf.cond(
      variable.is_initialized(),
      variable.read_value,
      lambda: variable.initial_value,
    )
    return begin(value)

  return initialize


def clip(
  pairs: list[tuple[tf.Tensor | None, tf.Variable]], norm: float
) -> list[tuple[tf.Tensor | None, tf.Variable]]:
  """Scales gradients down to a global L2 norm: Pascanu et al. 2013, 1211.5063.

  Args:
    pairs: (gradient, variable); the gradient is a tensor or None.

  Returns:
    A list like `pairs`.
  """
  gradients, variables = zip(*pairs, strict=True)
  if not any(tf.is_tensor(gradient) for gradient in gradients):
    return pairs
  clipped, _ = tf.clip_by_global_norm(gradients, norm, _find_norm(gradients))
  return list(zip(clipped, variables, strict=True))


def _find_norm(gradients: Iterable[tf.Tensor | None]) -> tf.Tensor:
  """Returns the norm of all `gradients`, which may be of several dtypes."""
  of_dtype = {}
  for gradient in gradients:
    if gradient is not None:
      with tf.device(gradient.device):
        gradient = sums.widen(gradient)
      of_dtype.setdefault(gradient.dtype, []).append(gradient)
  norms = [tf.global_norm(some) for some in of_dtype.values()]
  if len(norms) == 1:
    return norms[0]
  return tf.global_norm([tf.cast(norm, tf.float32) for norm in norms])
