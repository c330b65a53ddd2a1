"""fit: trains the caller's Keras model on a cluster."""

import contextlib
import glob
import os
import tempfile

from distmnist.api import fit_arguments, process, training
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
  fit_arguments.check(settings)
  training.check_is_shared(given, logdir)
  defaults = _choose_defaults(model, given)
  splits = fit_arguments.make_splits(x, y, validation_data, validation_split)
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
