"""--lr_schedule=plateau: the rate falls when validation no longer improves.

With a = --lr_decay_rate and N = --lr_patience, the chief cuts the rate whenever
N more evaluations in a row were not better than the best one, by the judge of
early stopping (training/hooks/validation.py). The update that is made at global
step t has

  eta_t = eta a^c(t),  c(t) = the cuts decided at a global step below t.

The count of cuts is a variable beside the global step, so that it is in each
checkpoint, and whoever reads the global step for its rate reads it as well: no
rule needs anything else. While the chief evaluates at step t of a rule in which
all wait for it, the others are at most in the step from t to t + 1, whose rate
they may have read already. This is why a cut holds only from t + 1 on: by then
each worker has the same count, whenever it has read it.

A center that is set back to a checkpoint from before a cut gets it once more,
at the same step, from best/ (logdir/best.py) or by the same evaluations.

Without a center each worker has the variable. The chief says in its next step,
from t to t + 1, that it has cut the rate, and the others follow at its end.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import graph_record

_LR_PATIENCE = flags.DEFINE_integer(
  'lr_patience',
  10,
  'plateau: the evaluations of --validation_steps in a row without a better '
  'one, by --best, after which the rate is multiplied by --lr_decay_rate; '
  'after as many more, once again.',
  lower_bound=1,
)


class Plateau:
  """The number of cuts of the rate, and the global step of the last one.

  Attributes:
    variable: int64 [2] variable, these two; the step is -1 before the first.
    factor: what each cut multiplies the rate by.
    patience: evaluations without improvement, see above.
  """

  def __init__(self, global_step: tf.Variable, factor: float) -> None:
    self.factor, self.patience = factor, _LR_PATIENCE.value
    self._global_step = global_step
    with tf.name_scope(None), tf.device(global_step.device):
      self.variable = tf.Variable(
        tf.constant([0, -1], tf.int64),
        trainable=False,
        use_resource=True,
        name='learning_rate_cuts',
      )
    record = graph_record.current()
    record.plateau = self
    record.optional.append(self.variable)

  def build_cuts(self) -> tf.Tensor:
    """Returns the cuts that hold now, a float32 scalar beside the step."""
    with tf.device(self.variable.device):
      step, cuts, cut_step = self._read()
      return tf.cast(cuts - tf.cast(step <= cut_step, tf.int64), tf.float32)

  def build_cut(self) -> tf.Tensor:
    """Returns the new value of `variable`, by a cut that the chief decides."""
    with tf.device(self.variable.device):
      step, cuts, _ = self._read()
      return self.variable.assign(tf.stack([cuts + 1, step]))

  def build_is_untold(self) -> tf.Tensor:
    """Returns whether this worker has a cut of which no other knows.

    To be told in this step, without a center, and given to `build_follow`.
    """
    with tf.device(self.variable.device):
      step, _, cut_step = self._read()
      return step <= cut_step

  def build_follow(
    self, is_untold: tf.Tensor, is_told: tf.Tensor
  ) -> tf.Operation:
    """Returns the op by which all have the cut of one, before the step counts.

    What is lost on its way, as a message that is not finite, is told again in
    the next step, and holds later.

    Args:
      is_untold: bool scalar tensor, what this worker has told.
      is_told: bool scalar tensor, whether any has, the same on all.
    """
    with tf.device(self.variable.device):
      step, cuts, cut_step = self._read()
      is_new = tf.cast(is_told & ~is_untold, tf.int64)
      later = tf.where(is_untold, step + 1, cut_step)
      told = tf.stack([cuts + is_new, tf.where(is_told, step, later)])
      return self.variable.assign(told, read_value=False)

  def _read(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (global step, cuts, step of the last cut), int64 scalars."""
    step = self._global_step.read_value()
    # Whoever finds a step is to find all cuts that were decided before it.
    with tf.control_dependencies([step]):
      cuts, cut_step = tf.unstack(self.variable.read_value(), num=2)
    return step, cuts, cut_step


def find() -> Plateau | None:
  """Returns the Plateau of the default graph, None under another schedule."""
  return graph_record.current().plateau
