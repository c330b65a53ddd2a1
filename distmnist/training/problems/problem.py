"""What is learnt: the images of the package, or a problem of the user's own.

A problem is a module. Its functions run in the graph of each worker, under
every strategy:

  load(split) -> (x, y)           nests of arrays [n, ...], for 'train',
                                  'validation' and 'test', or a reader of them,
                                  see data/streamed.py; None for one that there
                                  is not
  build(x, is_training) -> outputs, or make_model() -> keras.Model
  loss(y, outputs)                [n], or the mean over the batch, a scalar
  metrics(y, outputs)             {name: [n]}; reported are the means
  finish(means) -> {name: float}  what is computed of these means, such as rmse
  preprocess(x, y, is_training) -> (x, y)    of one batch, in the graph
  best = '-loss'                  by which metric a training is judged: '+' if
                                  more is better, '-' if less is
  prepare()                       for --download_only
  num_examples, stream(indices)   the training examples as a tf.data.Dataset,
                                  see readers/dataset.py
  spec() -> nest of tf.TensorSpec of one example's x, without the axis of the
                                  examples; else the training data tell it
  serve(outputs)                  {name: tensor [n, ...]} that a SavedModel
                                  gives; else all of the outputs

The first three are needed. With `make_model` the loss and the metrics may be
those of Keras, see keras_problem.py. The file itself, `load`, `prepare`,
`make_model`, `finish` and `spec` run eagerly; the others build the graph. The
problem that distmnist has is problems/images.py.
"""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.data import metric_total
from distmnist.problems import images
from distmnist.training.problems import keras_problem, problem_module


def from_flags(seed=0):
  """Returns the Problem of --problem, else that of the images.

  Args:
    seed: int, of the first weights where the model is one of Keras.

  Raises:
    cli.UsageError: the module lacks a function, or makes no model.
  """
  named, module = problem_module.load()
  if module in (None, images):
    return Problem(images)
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
  return Problem(module, named)


class Problem:
  """The functions of a problem's module, with what it may leave out.

  Attributes:
    module: the module, or what stands for it.
    is_custom: bool, whether it is the user's.
    judged_by: str, the metric by which a training is judged, as in `best`.
    metric, sign: str, its name; int, 1 if more of it is better, -1 if less is.
    has_keras_model: bool, whether its model is one of Keras.
    unit: str, what its examples are called, such as 'images'.
  """

  def __init__(self, module, named=''):
    """
    Args:
      module: the module.
      named: str, how the user names it by --problem; '' for the package's.

    Raises:
      cli.UsageError: its `best` is wrong.
    """
    self.module = module
    self._named = named
    self.is_custom = bool(named)
    self.has_keras_model = isinstance(module, keras_problem.KerasModule)
    self.unit = getattr(module, 'unit', 'examples')
    best = getattr(module, 'best', '-loss')
    if not isinstance(best, str) or best[:1] not in ('+', '-') or not best[1:]:
      raise cli.UsageError(
        f'--problem={named}: best is {best!r}: expected a metric with its '
        "direction, such as '-loss' or '+accuracy'"
      )
    self.judged_by = best
    self.metric, self.sign = best[1:], 1 if best[0] == '+' else -1

  def describe(self):
    """Returns what is learnt by what, a str."""
    return self._named or self.module.describe()

  def flags_of_meaning(self):
    """Returns the names of the flags that a run must go on with."""
    if not self.is_custom:
      return self.module.flags_of_meaning()
    own = flags.FLAGS.flags_by_module_dict().get(self.module.__name__, [])
    return ['problem', *(flag.name for flag in own)]

  def check_flags(self):
    """Checks what can be known without data; raises cli.UsageError."""
    if not self.is_custom:
      self.module.check_flags()

  def prepare(self):
    """Makes sure that the data are there; may download them."""
    self.call_optional('prepare')

  def load(self, name):
    """Returns what the module's `load` gives for the split called `name`."""
    return self.call('load', name)

  def preprocess(self, x, y, is_training):
    """Returns (x, y) as the model takes them; nests of tensors [n, ...]."""
    return self.call_optional('preprocess', x, y, is_training, default=(x, y))

  def build(self, x, is_training):
    """Returns the outputs of the model, a nest of tensors."""
    return self.call('build', x, is_training)

  def loss(self, y, outputs):
    """Returns (mean, values): a float32 scalar and float32 [n], or None.

    Raises cli.UsageError if it is neither [n] nor a scalar of floating point.
    """
    found = _check_loss(self.error, self.call('loss', y, outputs))
    if found.shape.ndims == 0:
      return found, None
    return tf.reduce_mean(found), found

  def metrics(self, y, outputs):
    """Returns {name: float32 [n] or metric_total.Total}.

    Raises:
      cli.UsageError: a metric has another shape.
    """
    found = self.call_optional('metrics', y, outputs, default={})
    if not isinstance(found, dict):
      raise self.error(
        f'metrics() gave {problem_module.shorten(found)}: expected a dict of '
        'tensors [n]'
      )
    return {
      name: metric_total.check(self.error, name, x) for name, x in found.items()
    }

  def finish(self, means):
    """Returns {name: float} of {name: mean}, with what is computed of them.

    In the place of a mean is a list of sums where the metric is a Total.
    """
    if not hasattr(self.module, 'finish'):
      return means
    found = self.call('finish', means)
    try:
      return {name: float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
      raise self.error(
        f'finish() gave {problem_module.shorten(found)}: expected a dict of '
        'name -> number'
      ) from error

  def choose(self, metrics):
    """Returns the value that judges, of {name: float}; or raises an error."""
    if self.metric not in metrics:
      raise self.error(
        f'best names the metric {self.metric!r}: expected one of '
        f'{", ".join(sorted(metrics))}'
      )
    return metrics[self.metric]

  def save_model(self, values, path):
    """Writes the model, which is one of Keras, as a file of Keras.

    Args:
      values: dict of variable name -> array; see checkpoints.fetch_whole.
      path: str, which ends in .keras.
    """
    self.module.save(values, path)

  def read_source(self):
    """Returns the bytes of the module's file."""
    return problem_module.read_source(self.module)

  def call_optional(self, name, *args, default=None):
    """Returns what a function gives; `default` where the module has none."""
    if not hasattr(self.module, name):
      return default
    return self.call(name, *args)

  def call(self, name, *args):
    if self.is_custom:
      return problem_module.call(self._named, self.module, name, *args)
    return getattr(self.module, name)(*args)

  def error(self, text):
    """Returns the cli.UsageError that names the problem."""
    return cli.UsageError(f'--problem={self._named}: {text}')


def _check_loss(error, found):
  """Returns what loss() gave as float32; raises what `error` makes of a str."""
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
