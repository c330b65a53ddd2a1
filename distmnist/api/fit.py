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
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from distmnist.api import keras_optimizer, process, training
from distmnist.common import layout
from distmnist.storage import paths, urls

if TYPE_CHECKING:
  import keras

Nest = Any  # An array [n, ...], or a dict, tuple or list of arrays.
# {'train': (x, y)}, and maybe 'validation' and 'test'.
Splits = dict[str, tuple[Nest, Nest]]

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
  model: 'keras.Model',
  x: Nest,
  y: Nest,
  *,
  validation_data: tuple[Nest, Nest] | None = None,
  validation_split: float | None = None,
  test_data: tuple[Nest, Nest] | None = None,
  best: str | None = None,
  logdir: str | os.PathLike | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings,
) -> tuple['keras.Model', training.Report]:
  """Trains a Keras model as `model.fit` does, but on a cluster.

    model.compile('adam', loss='mse', metrics=['mae'])
    model, report = distmnist.fit(model, x, y, strategy='easgd', num_workers=3)

  Args:
    model: compiled. Its classes must be Keras's own, or registered in a package
      that the tasks can import as well.
    x: array [n, ...], or a dict, tuple or list of arrays.
    y: array [n, ...].
    validation_data: (x, y) on which the model is judged, during the training
      with validation_steps and at its end: report.validation_metrics. Without
      it and without test_data, report.train_metrics are of the training data.
    validation_split: the part of x and y, their last examples, on which it is
      judged instead of being trained.
    test_data: (x, y) of which nothing is seen before the end:
      report.test_metrics.
    best: what early_stopping_patience goes by, a metric with + if more is
      better and - if less is, such as '+auc'; None for '-loss'.
    logdir: where checkpoints and reports are kept, and from which the same call
      resumes; None keeps nothing. With another model, or other x and y, it is
      refused.
    on_line: called with each line, see training.run.
    **settings: flags, see distmnist.run. By default epochs=1 (unless there are
      train_steps or train_secs), batch_size=32 (the examples in one worker's
      batch), and the optimizer and its learning rate, or its schedule of the
      rate, are those of the compiled model.

  Returns:
    (model, report): the same model, with the weights of the last step, or of
    the best one under early_stopping_patience.

  Raises:
    process.Error: the training has failed, or another run has the logdir.
    ValueError: the model is not compiled, or there are no flags for its
      optimizer; best has no direction; an argument is for Keras's own fit; the
      arrays do not fit each other or have objects that are no text; `logdir` is
      in a store, belongs to another user, has the training of another model or
      of other examples, or is missing and the launcher is for other hosts.
  """
  settings = {name: x for name, x in settings.items() if x is not None}
  given = process.read_flags(process.make_words(None, settings))
  logdir = logdir or given.get('logdir')
  check_arguments(settings)
  if logdir and urls.is_remote(os.fspath(logdir)):
    raise ValueError(
      f'logdir={logdir!r} is in a store, but fit passes the model and the '
      'arrays to the tasks as files in it: expected a folder (distmnist.run '
      'takes both)'
    )
  process.check_is_shared(given, logdir, 'logdir')
  defaults, schedule = {'batch_size': 32}, None
  if 'optimizer' not in given:
    has_rate = 'learning_rate' in given or 'lr_schedule' in given
    defaults |= keras_optimizer.read(model, has_rate)
    schedule = None if has_rate else keras_optimizer.read_schedule(model)
  defaults = {n: value for n, value in defaults.items() if n not in given}
  if best:
    if best[0] not in '+-':
      raise ValueError(
        f'best={best!r}: expected + if more of it is better, such as '
        f"'+{best}', or - if less is"
      )
    settings['best'] = best
  splits = make_splits(x, y, validation_data, validation_split, test_data)
  with _opened(logdir) as folder:
    report = _train(
      model,
      folder,
      splits,
      {**defaults, **settings, 'on_line': on_line},
      schedule,
    )
  return model, report


@contextlib.contextmanager
def _opened(logdir: str | os.PathLike | None) -> Iterator[str]:
  """Yields the path of the log directory, a temporary one if it is None.

  Of a temporary one the logs stay if the training fails: its error names them.
  """
  if logdir:
    logdir = os.path.expanduser(logdir)
    os.makedirs(logdir, exist_ok=True)
    yield logdir
    return
  temporary, kept = tempfile.mkdtemp(prefix='distmnist_fit_'), None
  try:
    yield temporary
  except process.Error:
    kept = 'logs'
    raise
  finally:
    for entry in os.scandir(temporary):
      if entry.name != kept:
        remove = paths.remove_folder if entry.is_dir() else paths.remove
        remove(entry.path)
    if not kept:
      os.rmdir(temporary)


def _train(
  model: 'keras.Model',
  logdir: str,
  splits: Splits,
  settings: dict[str, object],
  schedule: keras_optimizer.Schedule | None,
) -> training.Report:
  """Trains the model in place."""
  import keras  # noqa: PLC0415  Keeps `import distmnist` cheap.

  if not model.built:
    model(
      keras.tree.map_structure(
        lambda a: keras.KerasTensor((None, *a.shape[1:]), a.dtype.name),
        splits['train'][0],
      )
    )
  folder = layout.own_path(logdir, 'fitted')
  _hand_over(model, folder, splits, logdir, settings.get('resume'), schedule)
  settings = settings | {'logdir': logdir, 'fitted_dir': folder}
  report = training.run('fitted', **settings)
  trained = keras.models.load_model(os.path.join(logdir, 'model.keras'))
  model.set_weights(trained.get_weights())
  return report


def _hand_over(
  model: 'keras.Model',
  folder: str,
  splits: Splits,
  logdir: str,
  resume: str | None,
  schedule: keras_optimizer.Schedule | None,
) -> None:
  """Writes what the tasks read, once no other run has the log directory.

  The tasks of such a run have the files in `folder` mapped.

  Args:
    model: built.
    folder: within `logdir`.
    splits: what it is trained and judged on.
    logdir: of the run.
    resume: the value of --resume.
    schedule: of the learning rate, if the model is compiled with one.

  Raises:
    process.Error: another run has the log directory.
    ValueError: it belongs to another user; or see fitted.fill.
  """
  from distmnist.common import cli, files, owner  # noqa: PLC0415  Needs absl.
  from distmnist.problems import fitted  # noqa: PLC0415  Needs Keras.

  if other := (
    files.find_other_owner(logdir, os.path.dirname(folder))
    or fitted.find_other_owner(folder)
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
      fitted.fill(folder, model, splits, is_resumed, schedule)
  except cli.RunError as error:
    raise process.Error(str(error), error.exit_code, []) from error


def check_arguments(names: Iterable[str]) -> None:
  """Refuses what Keras's fit takes and distmnist.fit does not.

  Args:
    names: of the arguments that were given.

  Raises:
    ValueError: one of them is.
  """
  for name in names:
    if name in _INSTEAD:
      raise ValueError(
        f'{name} is for Keras, not for distmnist.fit: {_INSTEAD[name]}'
      )


def make_splits(
  x: Nest,
  y: Nest,
  validation_data: tuple[Nest, Nest] | None,
  validation_split: float | None,
  test_data: tuple[Nest, Nest] | None = None,
) -> Splits:
  """Returns what to train on, and what to judge by if that is given.

  Args:
    x: array [n, ...], or a dict, tuple or list of arrays.
    y: array [n, ...].
    validation_data: (x, y) to judge by.
    validation_split: the part of x and y, their last examples, to judge by.
    test_data: (x, y) to judge by at the end.

  Raises:
    ValueError: both are given; the one is not a pair, or the other not a part
      that leaves examples on both sides; y has several arrays; or as by
      array_folder.make.
  """
  from distmnist.data import array_folder  # noqa: PLC0415  Cheap until used.

  pairs = {'train': (x, y)}
  if validation_data is not None and validation_split:
    raise ValueError('validation_data and validation_split: expected one')
  for name, pair in ('validation', validation_data), ('test', test_data):
    if pair is None:
      continue
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
      raise ValueError(f'{name}_data: expected (x, y), without weights')
    pairs[name] = pair
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
  return splits | {
    name: tuple(
      array_folder.map_arrays(operator.itemgetter(part), nest) for nest in train
    )
    for name, part in (
      ('train', slice(end)),
      ('validation', slice(end, None)),
    )
  }
