"""fit: trains the caller's Keras model on a cluster.

It takes what Keras's own `fit` takes; an argument of that which means nothing
here is refused, and the error says what to give instead.
"""

import contextlib
import glob
import math
import operator
import os
import tempfile

from distmnist.api import process, training
from distmnist.storage import paths, urls

# Keras optimizers, their names here, which of their settings are flags, and
# what else makes TensorFlow 1's compute as Keras's do.
_OPTIMIZERS = {
  'SGD': ('sgd', (), {}),
  'Adam': ('adam', ('epsilon',), {}),
  'AdamW': ('adamw', ('epsilon',), {}),
  'Adagrad': ('adagrad', (), {}),
  'RMSprop': ('rmsprop', ('momentum', 'epsilon'), {'first_mean_square': 0}),
}

# Settings of Keras's optimizers that are read by name, or that change nothing.
_SAID = (
  'name',
  'learning_rate',
  'momentum',
  'nesterov',
  'global_clipnorm',
  'weight_decay',
)
_WEIGHTS = (
  'weights are part of the loss: write a problem with a loss of its own for '
  'distmnist.run'
)
_INSTEAD = {
  'callbacks': (
    'early_stopping_patience, lr_schedule and logdir stand for the most usual '
    'ones, and on_line gets each line'
  ),
  'class_weight': _WEIGHTS,
  'initial_epoch': 'with a logdir, the same call goes on where it ended',
  'sample_weight': _WEIGHTS,
  'shuffle': 'each epoch is shuffled, by seed',
  'steps_per_epoch': 'give epochs or train_steps',
  'validation_batch_size': 'the validation data is read in parts that fit',
  'validation_freq': 'give validation_steps, the steps from one to the next',
  'verbose': 'log_secs are the seconds between lines, and on_line gets each',
}


def fit(
  model,
  x,
  y,
  *,
  validation_data=None,
  validation_split=None,
  logdir=None,
  on_line=None,
  **settings,
):
  """Trains a Keras model as `model.fit` does, but on a cluster.

    model.compile('adam', loss='mse', metrics=['mae'])
    model, report = distmnist.fit(model, x, y, strategy='easgd', num_workers=3)

  Args:
    model: keras.Model, compiled. Its classes must be Keras's own, or registered
      in a package that the tasks can import as well.
    x: array [n, ...], or a dict, tuple or list of arrays.
    y: array [n, ...].
    validation_data: (x, y) on which the model is judged; None for the training
      data.
    validation_split: float, the part of x and y, their last examples, on which
      it is judged instead of being trained.
    logdir: str, where checkpoints and reports are kept, and from which the same
      call resumes; None keeps nothing. With another model, or other x and y, it
      is refused.
    on_line: callable(line), see training.run.
    **settings: flags, see distmnist.run. By default epochs=1 (unless there are
      train_steps), batch_size=32 (the examples in one worker's batch), and the
      optimizer and its learning rate are those of the compiled model.

  Returns:
    (model, training.Report): the same model, with the weights of the last step,
    or of the best one under early_stopping_patience.

  Raises:
    process.Error: the training has failed, or another run has the logdir.
    ValueError: the model is not compiled, or there are no flags for its
      optimizer; an argument is for Keras's own fit; the arrays do not fit each
      other or have objects that are no text; `logdir` is in a store, belongs to
      another user, has the training of another model or of other examples, or
      is missing and the launcher is for other hosts.
  """
  settings = {name: x for name, x in settings.items() if x is not None}
  given = training.read_flags(training.make_words(None, settings))
  logdir = logdir or given.get('logdir')
  _check_is_no_store(logdir)
  check_arguments(settings)
  training.check_is_shared(given, logdir)
  defaults = _choose_defaults(model, given)
  splits = make_splits(x, y, validation_data, validation_split)
  with _opened(logdir) as logdir:
    folder = os.path.join(logdir, 'fitted')
    settings = defaults | settings
    settings |= {'logdir': logdir, 'fitted_dir': folder, 'on_line': on_line}
    return _train(model, folder, splits, settings)


def _check_is_no_store(logdir):
  if logdir and urls.is_remote(logdir):
    raise ValueError(
      f'logdir={logdir!r} is in a store, but fit passes the model and the '
      'arrays to the tasks as files in it: expected a folder (distmnist.run '
      'takes both)'
    )


def _choose_defaults(model, given):
  """Returns the settings (dict) that no argument and no flagfile gives."""
  defaults = {'batch_size': 32}
  if 'optimizer' not in given:
    defaults |= _read_optimizer(model, 'learning_rate' in given)
  return {name: x for name, x in defaults.items() if name not in given}


@contextlib.contextmanager
def _opened(logdir):
  """Yields the path of the log directory, a temporary one if it is None.

  Of a temporary one the logs stay if the training fails: its error names them.
  """
  if logdir:
    logdir = os.path.expanduser(logdir)
    os.makedirs(logdir, exist_ok=True)
    yield logdir
    return
  temporary = tempfile.mkdtemp(prefix='distmnist_fit_')
  kept = ()
  try:
    yield temporary
  except process.Error:
    kept = ('logs',)
    raise
  finally:
    for entry in os.scandir(temporary):
      if entry.name not in kept:
        remove = paths.remove_folder if entry.is_dir() else paths.remove
        remove(entry.path)
    if not kept:
      os.rmdir(temporary)


def _train(model, folder, splits, settings):
  """Returns (model, report)."""
  import keras  # noqa: PLC0415  Keeps `import distmnist` cheap.

  if not model.built:
    model(
      keras.tree.map_structure(
        lambda a: keras.KerasTensor((None, *a.shape[1:]), a.dtype.name),
        splits['train'][0],
      )
    )
  logdir = settings['logdir']
  _hand_over(model, folder, splits, logdir, settings.get('resume'))
  report = training.run('fitted', **settings)
  trained = keras.models.load_model(os.path.join(logdir, 'model.keras'))
  model.set_weights(trained.get_weights())
  return model, report


def _hand_over(model, folder, splits, logdir, resume):
  """Writes what the tasks read, once no other run has the log directory.

  The tasks of such a run have the files in `folder` mapped.

  Args:
    model: keras.Model, built.
    folder: str, within `logdir`.
    splits: {name: (x, y)}.
    logdir: str.
    resume: str, the value of --resume, or None.

  Raises:
    process.Error: another run has the log directory.
    ValueError: it belongs to another user; or see fitted.fill.
  """
  from distmnist.common import cli, files, owner  # noqa: PLC0415  Needs absl.
  from distmnist.problems import fitted  # noqa: PLC0415  Needs Keras.

  if other := (
    files.find_other_owner(logdir) or fitted.find_other_owner(folder)
  ):
    path, uid = other
    raise ValueError(
      f'logdir={logdir!r} has Keras models, which are programs, and {path} '
      f'belongs to another user (uid {uid}): expected a folder of your own'
    )
  try:
    with owner.owned('logdir', logdir):
      run = os.path.join(glob.escape(logdir), 'model.ckpt-*.index')
      is_resumed = resume != 'never' and bool(glob.glob(run))
      fitted.fill(folder, model, splits, is_resumed)
  except cli.RunError as error:
    raise process.Error(str(error), error.exit_code, []) from error


def _read_optimizer(model, has_rate=False):
  """Returns the flags of the optimizer that a model is compiled with.

  Args:
    model: keras.Model.
    has_rate: bool, whether the caller gives a learning rate in its place.

  Raises:
    ValueError: there is none, or there are no flags for it.
  """
  if not model.compiled:
    raise ValueError('the model is not compiled: expected model.compile(...)')
  optimizer = model.optimizer
  name = type(optimizer).__name__
  if name == 'LossScaleOptimizer':  # Which compile() takes by itself.
    raise ValueError(
      'the model is compiled to scale its loss, as under mixed_float16, which '
      "no update rule here does: expected 'mixed_bfloat16', or float32"
    )
  if name not in _OPTIMIZERS:
    raise ValueError(
      f'the model is compiled with {name}: expected one of '
      f'{", ".join(_OPTIMIZERS)}, or optimizer= and learning_rate= here'
    )
  ours, taken, fixed = _OPTIMIZERS[name]
  settings = fixed | {key: getattr(optimizer, key) for key in taken}
  if name == 'SGD' and optimizer.momentum:
    ours = 'nesterov' if optimizer.nesterov else 'momentum'
    settings['momentum'] = optimizer.momentum
  if optimizer.global_clipnorm:
    settings['clip_norm'] = optimizer.global_clipnorm
  if optimizer.weight_decay is not None:
    settings['weight_decay'] = optimizer.weight_decay
    settings['decay_biases'] = True
  _check_settings(optimizer, {*settings, *_SAID})
  settings['optimizer'] = ours
  if not has_rate:
    settings['learning_rate'] = _read_rate(optimizer)
  return settings


def _check_settings(optimizer, said):
  """Raises ValueError for one that no flag can set and that is not the default.

  Args:
    optimizer: keras.optimizers.Optimizer.
    said: set of the names of the others.
  """
  # With a Keras model in hand, TensorFlow is there.
  from distmnist import tf_internals  # noqa: PLC0415

  if tf_internals.has_undecayed(optimizer):
    raise ValueError(
      'the model is compiled with exclude_from_weight_decay, which no flag can '
      'set: expected none, or optimizer= and weight_decay= here'
    )
  usual = type(optimizer)().get_config()
  for key, value in optimizer.get_config().items():
    if key not in said and value != usual.get(key):
      raise ValueError(
        f'the model is compiled with {type(optimizer).__name__}({key}={value}),'
        f' which no flag can set: expected {key}={usual.get(key)}, or '
        'optimizer= and learning_rate= here'
      )


def _read_rate(optimizer):
  from distmnist.nn import schedules  # noqa: PLC0415  It needs TensorFlow.

  rate = optimizer.get_config()['learning_rate']
  if isinstance(rate, dict):
    known = [name for name in schedules.SCHEDULES if name != 'constant']
    raise ValueError(
      f'the model is compiled with the learning rate {rate["class_name"]}: '
      'expected a number, or learning_rate= and lr_schedule= here, which is '
      f'one of {", ".join(known)}: there are no others'
    )
  return float(rate)


def check_arguments(settings):
  """Refuses what Keras's fit takes and distmnist.fit does not.

  Args:
    settings: iterable of str, the names of what was given.

  Raises:
    ValueError: one of them is.
  """
  for name in settings:
    if name in _INSTEAD:
      raise ValueError(
        f'{name} is for Keras, not for distmnist.fit: {_INSTEAD[name]}'
      )


def make_splits(x, y, validation_data, validation_split):
  """Returns {name: (x, y)} of NumPy's arrays: train, and validation if given.

  Args:
    x: array [n, ...], or a dict, tuple or list of arrays.
    y: array [n, ...].
    validation_data: (x, y) or None.
    validation_split: float, the part of x and y, their last examples, that is
      validation data instead; or None.

  Raises:
    ValueError: both are given; the one is not a pair, or the other not a part
      that leaves examples on both sides; y has several arrays; or as by
      array_folder.make.
  """
  from distmnist.data import array_folder  # noqa: PLC0415  Cheap until used.

  pairs = {'train': (x, y)}
  if validation_data is not None:
    if not isinstance(validation_data, (tuple, list)) or (
      len(validation_data) != 2
    ):
      raise ValueError('validation_data: expected (x, y), without weights')
    if validation_split:
      raise ValueError('validation_data and validation_split: expected one')
    pairs['validation'] = validation_data
  splits = {name: array_folder.make(*pair) for name, pair in pairs.items()}
  if (parts := len(array_folder.flatten(splits['train'][1])[1])) > 1:
    raise ValueError(
      f'y has {parts} arrays, and fit trains models of one output: for several '
      'write a file with make_model(), loss(y, outputs) and metrics(y, outputs)'
      ' for distmnist.run, see docs/keras.md'
    )
  if not validation_split:
    return splits
  train = splits['train']
  number = len(array_folder.flatten(train[0])[1][0])
  # Keras's own formula.
  end = math.floor(number * (1 - validation_split))
  if not 0 < end < number:
    raise ValueError(
      f'validation_split={validation_split:g} of {number} examples: expected a '
      'part between 0 and 1 that leaves some to train on and some to judge by'
    )
  return {
    name: tuple(
      array_folder.map_arrays(operator.itemgetter(part), nest) for nest in train
    )
    for name, part in (
      ('train', slice(end)),
      ('validation', slice(end, None)),
    )
  }
