"""Each optimizer as a formula: (weights, slots, gradient, rate) -> the next.

In all of these w is the weights, g their gradient, eta the rate, and a slot is
what the optimizer keeps beside w. `Formula.update` is pure, element by element
and for any number of rows: sparse tables are updated by it (sparse_updates.py).
`Formula.apply` is the same for a whole variable, in place, by a fused kernel of
TensorFlow. What comes before a formula is in optimizer.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import trust_ratio, weight_decay

_BETA1, _BETA2 = 0.9, 0.999
# As float32 and so the kernels have them: 1 - beta2 is off by 1e-5 of itself.
_BETA1_32, _BETA2_32 = (float(np.float32(beta)) for beta in (_BETA1, _BETA2))
_RHO = float(np.float32(0.9))
# What sums of squares begin with under adagrad and ftrl.
_FIRST_SUM = 0.1


class Slot(NamedTuple):
  """What an optimizer keeps beside weights.

  Attributes:
    name: as tf.train.Optimizer.get_slot takes it.
    saved_as: by which its variable is named after that of the weights. If there
      is one already, an underscore and a number follow.
    begin: what it begins with: a float, or callable(w, a float tensor) -> a
      tensor like w.
  """

  name: str
  saved_as: str
  begin: float | Callable[[tf.Tensor], tf.Tensor] = 0.0


class Kernel(NamedTuple):
  """What `Formula.apply` changes and has at hand, on the device of w.

  Attributes:
    weights: w.
    slots: like Formula.slots.
    rate: float or float32 scalar tensor, eta.
    powers: float32 scalar tensors, like Formula.betas: beta^t.
    use_locking: whether the update locks w.
    after: like `slots`, their new values, or None; see `LayerFormula.direct`.
  """

  weights: tf.Variable
  slots: list[tf.Variable]
  rate: float | tf.Tensor
  powers: list[tf.Tensor]
  use_locking: bool
  after: list[tf.Tensor] | None = None


@dataclasses.dataclass(frozen=True)
class Formula:
  """An optimizer.

  Attributes, of the class:
    name: of its ops.
    betas: the powers beta^t that are kept once for all variables, by the names
      of theirs.
    is_lazy: whether it moves a weight whose gradient is 0, but no row of a
      table without one.
  """

  name = ''
  slots: ClassVar[Sequence[Slot]] = ()
  betas: ClassVar[Mapping[str, float]] = {}
  is_lazy = False

  def find_rate(
    self, rate: float | tf.Tensor, powers: Sequence[tf.Tensor]
  ) -> float | tf.Tensor:
    """Returns the rate that `update` takes, a float32 scalar tensor or float.

    Args:
      rate: float or float32 scalar tensor, eta.
      powers: float32 scalar tensors, like `betas`: beta^t.
    """
    del powers
    return rate

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns (new weights, list of the new slots).

    Args:
      weights, gradient: float32 [n, width].
      slots: like `weights`.
      rate: float32 scalar tensor, see `find_rate`.
    """
    raise NotImplementedError

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    """Returns the op that does the same to a whole variable.

    Args:
      gradient: float tensor like the weights; the kernel computes in its dtype.
    """
    raise NotImplementedError


class LayerFormula(Formula):
  """An optimizer whose step is scaled by norms of whole layers.

  As these may be in shards on several ps, an update is made of three parts,
  with the norms in between: trust_ratio.py. No rows of tables are so updated.

    step, slots = direct(w, slots, g, powers)
    step = scale(w, step, (||w||, ||step||), eta)
    apply(w, slots, step)
  """

  weight_decay: float

  def direct(
    self,
    weights: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    corrections: tf.Tensor | None,
  ) -> tuple[tf.Tensor, list[tf.Tensor] | None]:
    """Returns (step, new slots or None), each like the weights.

    Args:
      slots: read at this point.
      gradient: float tensor.
      corrections: float32 [betas], 1 / (1 - beta^t), on any ps.
    """
    del weights, slots, corrections
    return gradient, None

  def scale(
    self,
    weights: tf.Variable,
    step: tf.Tensor,
    norms: tuple[tf.Tensor, tf.Tensor] | None,
    rate: float | tf.Tensor,
  ) -> tf.Tensor:
    """Returns the step of a layer as `apply` takes it.

    Args:
      weights, step: see `direct`.
      norms: (||w||, ||step||), float32 scalar tensors, of the whole layer;
        None for what has no ratio.
      rate: float or float32 scalar tensor, eta.
    """
    raise NotImplementedError


class Sgd(Formula):
  """w <- w - eta g."""

  name = 'GradientDescent'

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    return weights - rate * gradient, []

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(
      var=kernel.weights.handle,
      alpha=tf.cast(kernel.rate, gradient.dtype),
      delta=gradient,
      use_locking=kernel.use_locking,
    )


@dataclasses.dataclass(frozen=True)
class Momentum(Formula):
  """m <- mu m + g;  w <- w - eta m, or with Nesterov's - eta (g + mu m).

  Attributes:
    momentum: mu.
  """

  momentum: float
  use_nesterov: bool = False

  name = 'Momentum'
  slots = (Slot('momentum', 'Momentum'),)
  is_lazy = True

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    m = self.momentum * slots[0] + gradient
    step = gradient + self.momentum * m if self.use_nesterov else m
    return weights - rate * step, [m]

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyMomentum(
      var=kernel.weights.handle,
      accum=kernel.slots[0].handle,
      lr=tf.cast(kernel.rate, gradient.dtype),
      grad=gradient,
      momentum=tf.cast(self.momentum, gradient.dtype),
      use_locking=kernel.use_locking,
      use_nesterov=self.use_nesterov,
    )


class Adagrad(Formula):
  """n <- n + g^2;  w <- w - eta g / sqrt(n); n begins at 0.1.

  Duchi, Hazan and Singer 2011 (JMLR 12).
  """

  name = 'Adagrad'
  slots = (Slot('accumulator', 'Adagrad', _FIRST_SUM),)

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    n = slots[0] + tf.square(gradient)
    return weights - rate * gradient * tf.math.rsqrt(n), [n]

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyAdagrad(
      var=kernel.weights.handle,
      accum=kernel.slots[0].handle,
      lr=tf.cast(kernel.rate, gradient.dtype),
      grad=gradient,
      use_locking=kernel.use_locking,
    )


@dataclasses.dataclass(frozen=True)
class RmsProp(Formula):
  """n <- rho n + (1 - rho) g^2;  m <- mu m + eta g / sqrt(n + epsilon).

  And w <- w - m, with rho = 0.9. Tieleman and Hinton 2012, lecture 6.5.

  Attributes:
    momentum: mu.
    first_mean_square: what n begins with.
  """

  momentum: float
  epsilon: float = 1e-10
  first_mean_square: float = 1.0

  name = 'RMSProp'
  is_lazy = True

  @property
  def slots(self) -> tuple[Slot, ...]:
    return (
      Slot('rms', 'RMSProp', float(self.first_mean_square)),
      Slot('momentum', 'RMSProp'),
    )

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    n, m = slots
    n = _RHO * n + (1 - _RHO) * tf.square(gradient)
    step = rate * gradient * tf.math.rsqrt(n + self.epsilon)
    m = self.momentum * m + step
    return weights - m, [n, m]

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyRMSProp(
      var=kernel.weights.handle,
      ms=kernel.slots[0].handle,
      mom=kernel.slots[1].handle,
      lr=tf.cast(kernel.rate, gradient.dtype),
      rho=tf.cast(_RHO, gradient.dtype),
      momentum=tf.cast(self.momentum, gradient.dtype),
      epsilon=tf.cast(self.epsilon, gradient.dtype),
      grad=gradient,
      use_locking=kernel.use_locking,
    )


@dataclasses.dataclass(frozen=True)
class Adam(Formula):
  """Kingma and Ba 2015, arXiv 1412.6980, as at the end of section 2:

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
    w <- w - eta_t m / (sqrt(v) + epsilon)
    eta_t = eta sqrt(1 - beta2^t) / (1 - beta1^t)

  Attributes:
  """

  epsilon: float = 1e-8

  name = 'Adam'
  slots = (Slot('m', 'Adam'), Slot('v', 'Adam'))
  betas = {'beta1_power': _BETA1_32, 'beta2_power': _BETA2_32}
  is_lazy = True

  def find_rate(
    self, rate: float | tf.Tensor, powers: Sequence[tf.Tensor]
  ) -> tf.Tensor:
    power_1, power_2 = powers
    return rate * tf.sqrt(1 - power_2) / (1 - power_1)

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    m, v = slots
    m = _BETA1_32 * m + (1 - _BETA1_32) * gradient
    v = _BETA2_32 * v + (1 - _BETA2_32) * tf.square(gradient)
    return weights - rate * m / (tf.sqrt(v) + self.epsilon), [m, v]

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    m, v = kernel.slots
    power_1, power_2 = kernel.powers
    return tf.raw_ops.ResourceApplyAdam(
      var=kernel.weights.handle,
      m=m.handle,
      v=v.handle,
      beta1_power=tf.cast(power_1, gradient.dtype),
      beta2_power=tf.cast(power_2, gradient.dtype),
      lr=tf.cast(kernel.rate, gradient.dtype),
      beta1=tf.cast(_BETA1_32, gradient.dtype),
      beta2=tf.cast(_BETA2_32, gradient.dtype),
      epsilon=tf.cast(self.epsilon, gradient.dtype),
      grad=gradient,
      use_locking=kernel.use_locking,
    )


def _begin_linear(weights: np.ndarray | tf.Tensor) -> np.ndarray | tf.Tensor:
  return -math.sqrt(_FIRST_SUM) * weights


@dataclasses.dataclass(frozen=True)
class Ftrl(Formula):
  """FTRL-proximal, whose L1 penalty keeps weights at exactly 0.

  McMahan et al. 2013, "Ad click prediction: a view from the trenches" (KDD),
  algorithm 1, element by element; n and z are sums kept for the weight w:

    sigma = sqrt(n + g^2) - sqrt(n);  n <- n + g^2
    z <- z + eta g - sigma w
    w <- -(z - sign(z) eta lambda1) / (sqrt(n) + 2 eta lambda2) if |z| > eta
         lambda1, else 0

  Two things differ from the paper, which has a constant rate eta and weights
  that start at 0. z includes eta, so that a schedule changes future steps but
  not past ones. n starts at 0.1 and z at -sqrt(n) w, so that random initial
  weights stay as they are until gradients move them: with lambda1 = lambda2 = 0
  this is Adagrad.

  Attributes:
    l1, l2: lambda1 and lambda2.
  """

  l1: float = 0.0
  l2: float = 0.0

  name = 'Ftrl'
  slots = (
    Slot('accum', 'Ftrl', _FIRST_SUM),
    Slot('linear', 'Ftrl_1', _begin_linear),
  )

  def update(
    self,
    weights: tf.Tensor,
    slots: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    rate: float | tf.Tensor,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    n, z = slots
    before, n = tf.sqrt(n), n + tf.square(gradient)
    root = tf.sqrt(n)
    z += rate * gradient - (root - before) * weights
    l1 = rate * self.l1
    w = (tf.sign(z) * l1 - z) / (root + 2 * rate * self.l2)
    return tf.where(tf.abs(z) > l1, w, tf.zeros_like(w)), [n, z]

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceApplyFtrl(
      var=kernel.weights.handle,
      accum=kernel.slots[0].handle,
      linear=kernel.slots[1].handle,
      grad=gradient,
      lr=tf.cast(kernel.rate, gradient.dtype),
      l1=self.l1,
      l2=self.l2,
      lr_power=-0.5,
      use_locking=kernel.use_locking,
      multiply_linear_by_lr=True,
    )


@dataclasses.dataclass(frozen=True)
class Lars(LayerFormula):
  """LARS: momentum, with each layer's rate set by the norm of its weights.

  You, Gitman and Ginsburg 2017, "Large batch training of convolutional
  networks" (arXiv 1708.03888), algorithm 1. For each layer, gamma being the
  rate, m the momentum, beta the weight decay and eta the trust coefficient:

    lambda = eta ||w|| / (||g|| + beta ||w||)
    v <- m v + gamma lambda (g + beta w);  w <- w - v

  lambda is 1 where ||w|| or ||g|| is 0, as in the authors' program: where g is
  0 the weights shrink by gamma beta, not by gamma eta. Biases and the scales of
  batch norm (rank 0 or 1) have lambda = 1 and beta = 0.

  Attributes:
    momentum, weight_decay, trust_coefficient: m, beta and eta.
  """

  momentum: float
  weight_decay: float = 0.0
  trust_coefficient: float = 0.001

  name = 'Lars'
  slots = (Slot('momentum', 'Lars'),)

  def scale(
    self,
    weights: tf.Variable,
    step: tf.Tensor,
    norms: tuple[tf.Tensor, tf.Tensor] | None,
    rate: float | tf.Tensor,
  ) -> tf.Tensor:
    if norms is None:
      return trust_ratio.scale(rate, step)
    w, g = norms
    ratio = self.trust_coefficient * w / (g + self.weight_decay * w)
    ratio = trust_ratio.choose(ratio, norms)
    if self.weight_decay:
      step += self.weight_decay * weights.read_value()
    return trust_ratio.scale(rate * ratio, step)

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    return Momentum(self.momentum).apply(kernel._replace(rate=1.0), gradient)


@dataclasses.dataclass(frozen=True)
class Lamb(LayerFormula):
  """LAMB: Adam, with each layer's step scaled to the norm of its weights.

  You et al. 2020, "Large batch optimization for deep learning: training BERT in
  76 minutes" (ICLR, arXiv 1904.00962), algorithm 2, with phi(z) = z. For each
  layer, eta being the rate and lambda the weight decay:

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
    r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + lambda w
    w <- w - eta (||w|| / ||r||) r

  The ratio is 1 where ||w|| or ||r|| is 0, and epsilon is 1e-6, as in the
  authors' program. Biases and the scales of batch norm (rank 0 or 1) have the
  ratio 1 and lambda = 0.

  Attributes:
    weight_decay: lambda.
  """

  weight_decay: float = 0.0

  name = 'Lamb'
  slots = (Slot('m', 'Lamb'), Slot('v', 'Lamb'))
  betas = {'beta1_power': _BETA1_32, 'beta2_power': _BETA2_32}

  def direct(
    self,
    weights: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    corrections: tf.Tensor | None,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    correction_1, correction_2 = tf.unstack(corrections, num=2)
    m, v = (slot.read_value() for slot in slots)
    m = _BETA1 * m + (1 - _BETA1) * gradient
    v = _BETA2 * v + (1 - _BETA2) * tf.square(gradient)
    root = tf.sqrt(trust_ratio.scale(correction_2, v))
    step = trust_ratio.scale(correction_1, m) / (root + 1e-6)
    if self.weight_decay and weight_decay.decays(weights):
      step += self.weight_decay * weights.read_value()
    return step, [m, v]

  def scale(
    self,
    weights: tf.Variable,
    step: tf.Tensor,
    norms: tuple[tf.Tensor, tf.Tensor] | None,
    rate: float | tf.Tensor,
  ) -> tf.Tensor:
    if norms is None:
      return step
    w, r = norms
    return trust_ratio.scale(trust_ratio.choose(w / r, norms), step)

  def apply(self, kernel: Kernel, gradient: tf.Tensor) -> tf.Operation:
    step = trust_ratio.scale(kernel.rate, gradient)
    moved = kernel.weights.assign_sub(step, read_value=False)
    # What is not to be applied, after all, is not kept either.
    with tf.control_dependencies([gradient]):
      kept = [
        slot.assign(value, read_value=False)
        for slot, value in zip(kernel.slots, kernel.after or (), strict=True)
      ]
    return tf.group(moved, *kept)


def make(
  name: str, momentum: float = 0.9, weight_decay: float = 0.0, **own: float
) -> Formula:
  """Returns the Formula of a name.

  Args:
    name: a value of --optimizer.
    momentum: for those that have one.
    weight_decay: for those that scale it with their steps.
    **own: floats that only one has: l1 and l2 of ftrl, trust_coefficient of
      lars, epsilon of adam, adamw and rmsprop, first_mean_square of rmsprop.
      What is missing is as by default.
  """
  if name == 'nesterov':
    return Momentum(momentum, use_nesterov=True)
  kind = KINDS[name]
  fields = {field.name for field in dataclasses.fields(kind)}
  given = {'momentum': momentum, 'weight_decay': weight_decay}
  return kind(**{k: v for k, v in given.items() if k in fields}, **own)


# By the values of --optimizer; adamw is adam with a decay beside its step.
KINDS = {
  'sgd': Sgd,
  'momentum': Momentum,
  'nesterov': Momentum,
  'adam': Adam,
  'adamw': Adam,
  'adagrad': Adagrad,
  'rmsprop': RmsProp,
  'ftrl': Ftrl,
  'lars': Lars,
  'lamb': Lamb,
}
