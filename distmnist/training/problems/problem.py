"""What is learned: the package's images, or a problem of the user's own.

A problem is a module. Its functions run in the graph of each worker, under
every strategy:

  load(split) -> (x, y)           nests of arrays [n, ...], for 'train',
                                  'validation' and 'test', or a reader of them,
                                  see data/streamed.py; None for a split that
                                  does not exist; or (x, y, w), w [n] the
                                  weights of the examples
  build(x, is_training) -> outputs, or make_model() -> keras.Model
  loss(y, outputs)                [n], or the mean over the batch, a scalar;
                                  or (values, weights), of one shape [n, ...],
                                  for sum(weights * values) / sum(weights)
  metrics(y, outputs)             {name: [n]}; the means are reported, with
                                  weights sum(w * metric) / sum(w)
  finish(means) -> {name: float}  computed from these means, such as rmse
  preprocess(x, y, is_training) -> (x, y)    for one batch, in the graph
  best = '-loss'                  the metric that judges a training: '+' if
                                  more is better, '-' if less is; --best
                                  names another
  prepare()                       for --download_only
  num_examples, stream(indices)   the training examples as a tf.data.Dataset,
                                  see readers/dataset.py
  spec() -> nest of tf.TensorSpec of one example's x, without the axis of the
                                  examples; by default from the training data
  serve(outputs)                  {name: tensor [n, ...]} that a SavedModel
                                  returns; by default all of the outputs
  learning_rate(step, epoch)      the learning rate, a float32 scalar in the
                                  graph, in place of the flags'
  groups = {'head/.*': {'learning_rate': 10}}
                                  variables with a rate, an optimizer or a
                                  weight decay of their own, see nn/groups.py;
                                  or groups(), called once the flags are read

The first three are required. With `make_model` the loss and the metrics may be
Keras's, see keras_problem.py. With weights w of the examples the loss is
sum(w * loss) / n, as in Keras. Either way the mean over the batches of workers
in lock-step, of slices and of GPUs is the loss of one large batch: one that is
divided by weights or a mask counts by the sum of these (BatchLoss.weight).

The file itself, `load`, `prepare`, `make_model`, `finish` and `spec` run
eagerly; the others build the graph. distmnist's own problem is
problems/images.py.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.data import metric_total
from distmnist.nn import groups as groups_lib
from distmnist.problems import images
from distmnist.training.problems import (
  classic_variables,
  keras_problem,
  problem_module,
  user_calls,
)

if TYPE_CHECKING:
  import numpy as np

_BEST = flags.DEFINE_string(
  'best',
  None,
  'The metric that judges a training on validation data, for early stopping '
  'and the best checkpoint: + and its name if more is better, such as +auc, - '
  'if less is, such as -loss. By default what the problem says. With it and '
  '--logdir the report and the model are those of the best checkpoint, also '
  'without --early_stopping_patience.',
)
_JUDGE = re.compile(r'[+-].+')
flags.register_validator(
  'best',
  lambda text: text is None or _JUDGE.fullmatch(text),
  'expected a metric with its direction, such as -loss or +accuracy',
)


def from_flags(seed: int = 0) -> Problem:
  """Returns the Problem that --problem names, by default the images.

  Args:
    seed: for the initial weights if the model is a Keras model.

  Raises:
    cli.UsageError: the module lacks a function, or makes no model.
  """
  named, module = problem_module.load()
  if module in (None, images):
    return Problem(images, best=_BEST.value)
  has_model = hasattr(module, 'make_model')
  if has_model and hasattr(module, 'build'):
    raise cli.UsageError(
      f'--problem={named} has build and make_model: leave one of them out'
    )
  needed = ['load', 'make_model'] if has_model else ['load', 'build', 'loss']
  missing = [n for n in needed if not callable(getattr(module, n, None))]
  if missing:
    raise cli.UsageError(
      f'--problem={named} has no function {" and no ".join(missing)}: expected '
      'load(split), build(x, is_training) or make_model(), and loss(y, outputs)'
    )
  if has_model:
    module = keras_problem.adapt(named, module, seed)
  return Problem(module, named, _BEST.value)


@contextlib.contextmanager
def open_graph(device: Any = None) -> Iterator[tf.Graph]:
  """Opens a graph for a problem's functions, apart from a training's.

  It begins with the global step, as that of a training does
  (step.make_global_step): a function may use it, and a checkpoint has it.

  Args:
    device: what tf.device takes, where the global step is; here by default.

  Yields:
    The tf.Graph.
  """
  with tf.Graph().as_default() as graph:
    with tf.device(device):
      tf.train.get_or_create_global_step()
    yield graph


class BatchLoss(NamedTuple):
  """The loss of a batch.

  Attributes:
    mean: float32 scalar tensor.
    values: float32 tensor [n], of which it is the mean; None if not known.
    weight: float32 scalar tensor, by which the mean over several batches is to
      weigh each: what it is divided by, per example; None for n.
  """

  mean: tf.Tensor
  values: tf.Tensor | None = None
  weight: tf.Tensor | None = None


class Problem:
  """The functions of a problem's module, with defaults for optional ones.

  Attributes:
    module: the module, or what stands in for it.
    is_custom: whether it is the user's.
    judged_by: the metric by which a training is judged, as in `best`, or by
      --best.
    metric, sign: its name, and 1 if more of it is better, -1 if less is.
    has_keras_model: whether its model is a Keras model.
    unit: what its examples are called, such as 'images'.
    groups: how some of its variables are moved.
  """

  def __init__(
    self, module: Any, named: str = '', best: str | None = None
  ) -> None:
    """
    Args:
      named: how the user names it in --problem; '' for the package's.
      best: the metric that --best names, or None for the module's.

    Raises:
      cli.UsageError: its `best` or its `groups` are wrong.
    """
    self.module = module
    self._named = named
    self.is_custom = bool(named)
    self.has_keras_model = isinstance(module, keras_problem.KerasModule)
    self.unit = getattr(module, 'unit', 'examples')
    groups = getattr(module, 'groups', None)
    if callable(groups):
      groups = self.call('groups')
    self.groups = groups_lib.parse(groups, f'--problem={named}: groups')
    self._best_flag = best
    best = best or getattr(module, 'best', '-loss')
    if not isinstance(best, str) or not _JUDGE.fullmatch(best):
      raise cli.UsageError(
        f'--problem={named}: best is {best!r}: expected a metric with its '
        "direction, such as '-loss' or '+accuracy'"
      )
    self.judged_by = best
    self.metric = self.judged_by[1:]
    self.sign = 1 if self.judged_by[0] == '+' else -1

  def describe(self) -> str:
    """Returns what is learned and by which model."""
    return self._named or self.module.describe()

  def flags_of_meaning(self) -> list[str]:
    """Returns the names of the flags that a resumed run must keep."""
    if not self.is_custom:
      return self.module.flags_of_meaning()
    own = flags.FLAGS.flags_by_module_dict().get(self.module.__name__, [])
    return ['problem', *(flag.name for flag in own)]

  def check_flags(self) -> None:
    """Checks what can be checked without data; raises cli.UsageError."""
    if not self.is_custom:
      self.module.check_flags()

  def prepare(self) -> None:
    """Makes sure that the data exist; may download them."""
    self.call_optional('prepare')

  def load(self, name: str) -> Any:
    """Returns what the module's `load` returns for the split `name`."""
    return self.call('load', name)

  def preprocess(self, x: Any, y: Any, is_training: bool) -> tuple[Any, Any]:
    """Returns (x, y) as the model takes them; nests of tensors [n, ...].

    Raises:
      cli.UsageError: the module's function gives something else.
    """
    found = self.call_optional('preprocess', x, y, is_training, default=(x, y))
    if not isinstance(found, (list, tuple)) or len(found) != 2:
      raise self.error(
        f'preprocess() gave {problem_module.shorten(found)}: expected (x, y)'
      )
    x, y = found
    return x, y

  def build(self, x: Any, is_training: bool) -> Any:
    """Returns the outputs of the model, a nest of tensors."""
    if not self.is_custom or self.has_keras_model:
      return self.call('build', x, is_training)
    with classic_variables.shared(self.error):
      return self.call('build', x, is_training)

  def loss(
    self, y: Any, outputs: Any, weights: tf.Tensor | None = None
  ) -> BatchLoss:
    """Returns the loss of a batch.

    Args:
      y, outputs: nests of tensors [n, ...].
      weights: float32 tensor [n], those of the examples.

    Raises:
      cli.UsageError: it has another shape, or is not floats; or there are
        weights, and it is a mean that the file has computed without them.
    """
    if self.has_keras_model and not self.module.has_own_loss(y, outputs):
      mean, weight = self.call('loss', y, outputs, weights)
      return BatchLoss(_check_loss(self.error, mean), None, weight)
    found = self.call('loss', y, outputs)
    if isinstance(found, (list, tuple)):
      return _divide(self.error, found, weights)
    found = _check_loss(self.error, found)
    if found.shape.ndims == 0:
      if weights is not None:
        raise self.error(
          'loss() gave a mean, but load() gives weights: expected the loss of '
          'each example, [n]'
        )
      return BatchLoss(found)
    if weights is not None:
      found *= weights
    return BatchLoss(tf.reduce_mean(found), found)

  def metrics(
    self, y: Any, outputs: Any, weights: tf.Tensor | None = None
  ) -> dict[str, metric_total.Total | tf.Tensor]:
    """Returns {name: float32 [n] or metric_total.Total}.

    Args:
      y, outputs: nests of tensors [n, ...].
      weights: float32 tensor [n], those of the examples, or None. They count in
        a Total already; see metric_total.Mean for the others.

    Raises:
      cli.UsageError: a metric has another shape.
    """
    args = (weights,) if self.has_keras_model else ()
    found = self.call_optional('metrics', y, outputs, *args, default={})
    if not isinstance(found, dict):
      raise self.error(
        f'metrics() gave {problem_module.shorten(found)}: expected a dict of '
        'tensors [n]'
      )
    return {
      name: metric_total.check(self.error, name, x) for name, x in found.items()
    }

  def learning_rate(
    self, step: tf.Tensor, epoch: tf.Tensor
  ) -> tf.Tensor | None:
    """Returns the problem's own learning rate, or None if it has none.

    Args:
      step: int64 scalar tensor, the updates of the center so far.
      epoch: float32 scalar tensor, the epochs that these took in.

    Returns:
      float32 scalar tensor.

    Raises:
      cli.UsageError: it is no scalar, or the module has something else of this
        name than a function.
    """
    given = getattr(self.module, 'learning_rate', None)
    if not self.is_custom or given is None:
      return None
    if not callable(given):
      raise self.error(
        f'learning_rate is {problem_module.shorten(given)}: expected a function'
        ' of (step, epoch); a number is given by --learning_rate'
      )
    found = self.call('learning_rate', step, epoch)
    if found is None:
      return None
    with contextlib.suppress(TypeError, ValueError):
      found = tf.convert_to_tensor(found)
    is_number = tf.is_tensor(found) and (
      found.dtype.is_floating or found.dtype.is_integer
    )
    if not is_number or found.shape.rank not in (0, None):
      raise self.error(
        f'learning_rate() gave {problem_module.shorten(found)}: expected one '
        'number, or a scalar tensor of floats'
      )
    return tf.cast(found, tf.float32)

  def finish(self, means: Mapping[str, Any]) -> dict[str, float]:
    """Returns {name: float} from {name: mean}, with what is computed from them.

    If a metric is a Total, its entry is a list of sums instead of a mean. What
    judges the training is the first of those returned.
    """
    found = means
    if hasattr(self.module, 'finish'):
      found = self.call('finish', means)
    try:
      judge = {name: found[name] for name in [self.metric] if name in found}
      return {n: float(x) for n, x in {**judge, **found}.items()}
    except (AttributeError, TypeError, ValueError) as error:
      raise self.error(
        f'finish() gave {problem_module.shorten(found)}: expected a dict of '
        'name -> number'
      ) from error

  def check_best(self, metrics: Collection[str]) -> None:
    """Raises cli.UsageError unless what judges is among names of metrics."""
    if self.metric in metrics:
      return
    expected = f'expected one of {", ".join(sorted(metrics))}'
    if self._best_flag:
      raise cli.UsageError(
        f'--best={self._best_flag}: no metric is {self.metric!r}: {expected}'
      )
    raise self.error(f'best names the metric {self.metric!r}: {expected}')

  def save_model(self, values: Mapping[str, np.ndarray], path: str) -> None:
    """Writes the model, which must be a Keras model, as a Keras file.

    Args:
      values: by the names of variables; see checkpoints.fetch_whole.
      path: ending in .keras.
    """
    self.module.save(values, path)

  def read_source(self) -> bytes:
    """Returns the bytes of the module's file."""
    return problem_module.read_source(self.module)

  def call_optional(self, name: str, *args: Any, default: Any = None) -> Any:
    """Returns a function's result, or `default` if the module lacks it."""
    if not hasattr(self.module, name):
      return default
    return self.call(name, *args)

  def call(self, name: str, *args: Any) -> Any:
    if self.is_custom:
      return user_calls.call(self._named, self.module, name, *args)
    return getattr(self.module, name)(*args)

  def error(self, text: str) -> cli.UsageError:
    """Returns a cli.UsageError that names the problem."""
    return cli.UsageError(f'--problem={self._named}: {text}')


def _check_loss(
  error: Callable[[str], cli.UsageError], found: Any
) -> tf.Tensor:
  """Returns loss()'s result as float32; raises error(str) if it is wrong."""
  if found is None:
    raise error('loss() gave None: does it end with a return?')
  if not isinstance(found, (tf.Tensor, tf.Variable)):
    raise error(
      f'loss() gave {problem_module.shorten(found)}: expected a tensor of '
      'float32, one value an example or their mean'
    )
  found = tf.convert_to_tensor(found)
  if not found.dtype.is_floating or found.shape.ndims not in (0, 1):
    raise error(
      f'loss() gave {found.dtype.name} of shape {found.shape}: expected '
      'float32, one value an example or their mean'
    )
  return tf.cast(found, tf.float32)


def _divide(
  error: Callable[[str], cli.UsageError],
  found: Sequence[Any],
  of_examples: tf.Tensor | None,
) -> BatchLoss:
  """Returns the BatchLoss of a loss() that gives weights of its own.

  Args:
    found: what loss() gave.
    of_examples: float32 tensor [n], or None; they do not count in the divisor.

  Raises:
    cli.UsageError: it is no pair of tensors of one shape.
  """
  try:
    values, weights = (tf.cast(part, tf.float32) for part in found)
    values.shape.assert_is_compatible_with(weights.shape)
    if not values.shape.rank:
      raise ValueError('a scalar')
    if of_examples is not None:
      shape = [-1] + [1] * (values.shape.rank - 1)
      values *= tf.reshape(of_examples, shape)
  except (TypeError, ValueError) as wrong:
    raise error(
      f'loss() gave {problem_module.shorten(found)}: expected one loss an '
      'example, their mean, or two tensors of one shape [n, ...], (values, '
      'weights)'
    ) from wrong
  mean = tf.math.divide_no_nan(*metric_total.Mean.of(values, weights))
  return BatchLoss(mean, None, tf.stop_gradient(tf.reduce_mean(weights)))


def build_sums(
  problem: Problem,
  y: Any,
  outputs: Any,
  weights: tf.Tensor | None = None,
) -> dict[str, metric_total.Mean | list[tf.Tensor]]:
  """Returns {name: metric_total.Mean}, the metrics of these examples.

  For a metric_total.Total it is the list of its states. The loss is added
  unless a metric has that name.

  Args:
    y: nest of tensors [n, ...], what is to be learned.
    outputs: nest of tensors, the model's.
    weights: float32 tensor [n], those of the examples.
  """
  sums = {
    name: values.states
    if isinstance(values, metric_total.Total)
    else metric_total.Mean.of(values, weights)
    for name, values in problem.metrics(y, outputs, weights).items()
  }
  if 'loss' not in sums:
    loss = problem.loss(y, outputs, weights)
    if loss.values is None:
      n = tf.cast(tf.shape(tf.nest.flatten(y)[0])[0], tf.float32)
      if loss.weight is not None:
        n *= loss.weight
      sums['loss'] = metric_total.Mean(loss.mean * n, n)
    else:
      sums['loss'] = metric_total.Mean.of(loss.values)
  return sums
