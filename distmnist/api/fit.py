"""fit: trains the caller's Keras model on a cluster.

It takes what Keras's own `fit` takes; an argument of that which means nothing
here is refused, and the error says what to give instead.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from distmnist.api import keras_groups, keras_optimizer, process, training
from distmnist.common import layout
from distmnist.storage import paths, process_tag, urls

if TYPE_CHECKING:
  import keras

  from distmnist.data import fit_data
  from distmnist.nn import groups as groups_lib

_PREFIX = 'distmnist_fit_'  # Of a temporary folder.
_LOGS = 'logs'
_INSTEAD = {
  'callbacks': (
    'early_stopping_patience for EarlyStopping (best='
    "'+accuracy' says by what), lr_schedule='plateau' for ReduceLROnPlateau, "
    'logdir for ModelCheckpoint; docs/keras.md has the others'
  ),
  'initial_epoch': 'with a logdir, the same call goes on where it ended',
  'shuffle': 'each epoch is shuffled, by seed',
  'steps_per_epoch': 'give epochs or train_steps',
  'validation_batch_size': 'the validation data is read in parts that fit',
  'validation_freq': 'give validation_steps, the steps from one to the next',
  'verbose': 'log_secs are the seconds between lines, and on_line gets each',
}


def fit(
  model: keras.Model,
  x: Any,
  y: Any = None,
  *,
  validation_data: Any = None,
  validation_split: float | None = None,
  sample_weight: Any = None,
  class_weight: Mapping[int, float] | None = None,
  test_data: Any = None,
  best: str | None = None,
  groups: Mapping[str, Mapping[str, Any]] | None = None,
  logdir: str | os.PathLike | None = None,
  on_line: Callable[[str], object] | None = None,
  **settings: Any,
) -> tuple[keras.Model, training.Report]:
  """Trains a Keras model as `model.fit` does, but on a cluster.

    model.compile('adam', loss='mse', metrics=['mae'])
    model, report = distmnist.fit(model, x, y, strategy='easgd', num_workers=3)

  Args:
    model: compiled. Its classes must be Keras's own, or registered in a package
      that the tasks can import as well.
    x: array [n, ...], a dict, tuple or list of arrays, a DataFrame, or a
      tf.data.Dataset of known size, with the labels, which is read once.
    y: array [n, ...] or Series.
    validation_data: (x, y) or (x, y, weights), or a data set, on which the
      model is judged, once an epoch and at the end: report.validation_metrics.
      Without it and without test_data, report.train_metrics are of the training
      data.
    validation_split: the part of x and y, their last examples, on which it is
      judged instead of being trained.
    sample_weight: [n], how much each example counts, in the loss and in the
      `weighted_metrics` of compile.
    class_weight: {class: how much its examples count in training}.
    test_data: (x, y) or (x, y, weights), or a data set, of which nothing is
      seen before the end: report.test_metrics.
    best: what the best weights are judged by, a metric with + if more is better
      and - if less is, such as '+auc'; None for '-loss' under
      early_stopping_patience.
    groups: variables with a rate, an optimizer or a weight decay of their own,
      by their Keras paths: {'dense/kernel': {'learning_rate': 10}}. A key is a
      regular expression for a whole path, with or without the model's name; of
      several that match, the first counts. See docs/your_own_model.md.
    logdir: where checkpoints and reports are kept, and from which the same call
      resumes; None keeps nothing. With another model, or other x and y, it is
      refused.
    on_line: called with each line, see training.run.
    **settings: flags, see distmnist.run. By default epochs=1 (unless there are
      train_steps or train_secs), batch_size=32 (the examples in one worker's
      batch; that of a data set), validation once an epoch if there is what to
      validate on (early_stopping_patience then counts epochs), and the
      optimizer and its learning rate, or its schedule of the rate, are those of
      the compiled model.

  Returns:
    (model, report): the same model, with the weights of the last step, or of
    the best one with best or early_stopping_patience.

  Raises:
    process.Error: the training has failed, or another run has the logdir.
    ValueError: it is no compiled Keras model, or one that no update rule can
      train, looks words up, or there are no flags for its optimizer; best has
      no direction; the groups are wrong, or one has no variable; an argument is
      for Keras's own fit; the examples have missing values or do not fit each
      other or the loss; `logdir` is in a store, belongs to another user, has
      the training of another model or of other examples, or is missing and the
      launcher is for other hosts.
  """
  settings = {name: x for name, x in settings.items() if x is not None}
  given = process.read_flags(process.make_words(None, settings))
  logdir = logdir or given.get('logdir')
  check_arguments(settings)
  _check_objects(settings)
  _check_has_ps(given)
  if best:
    _check_direction(best)
    settings['best'] = given['best'] = best
  parsed = keras_groups.parse(groups)
  if logdir and urls.is_remote(os.fspath(logdir)):
    raise ValueError(
      f'logdir={logdir!r} is in a store, but fit passes the model and the '
      'arrays to the tasks as files in it: expected a folder (distmnist.run '
      'takes both)'
    )
  process.check_is_shared(given, logdir, 'logdir')
  from distmnist.data import fit_data  # noqa: PLC0415  It needs NumPy.

  _check_layers(model)
  if given.get('best'):
    _check_is_measured(model, given['best'])
  splits, batch_size = fit_data.make_splits(
    *(model, x, y, validation_data, validation_split),
    *(test_data, sample_weight, class_weight),
  )
  defaults = {'batch_size': batch_size or 32}
  if 'validation' in splits:
    defaults['validation_steps'] = -1  # Once an epoch.
  elif needs := _find_judged(given):
    raise ValueError(
      f'{needs} needs validation_data or validation_split: what to judge the '
      'model by'
    )
  schedule = None
  if 'optimizer' not in given:
    has_rate = 'learning_rate' in given
    defaults |= keras_optimizer.read(model, has_rate)
    schedule = None if has_rate else keras_optimizer.read_schedule(model)
    if schedule and 'lr_schedule' in given:
      raise ValueError(
        f'lr_schedule: the model is compiled with {schedule["class_name"]}: '
        'leave one of them out, or give learning_rate, too'
      )
    if schedule:
      last = given.get('train_steps', '') if 'epochs' not in given else ''
      last = [int(last)] if last.isdecimal() else []
      keras_optimizer.check_schedule(model, [0, 1, *last])
  defaults = {n: value for n, value in defaults.items() if n not in given}
  _check_batch(defaults | given, splits['train'])
  with _opened(logdir) as folder:
    settings = {**defaults, **settings}
    is_off = {name for name, value in settings.items() if value is False}
    reword = functools.partial(
      reword_line, None if logdir else folder, is_off=is_off
    )
    settings |= {'on_line': on_line, 'reword': reword}
    report = _train(model, folder, splits, settings, schedule, parsed)
  return model, report


def _check_objects(settings: Mapping[str, Any]) -> None:
  """Raises ValueError for an object of Keras where a flag has a name."""
  for name, example in ('optimizer', 'adam'), ('learning_rate', 0.01):
    value = settings.get(name)
    if hasattr(value, 'get_config'):
      kind = type(value).__name__
      inner = f'{kind}(...)' if name == 'optimizer' else f'Adam({kind}(...))'
      raise ValueError(
        f'{name} is an object, {kind}: compile the model with {inner}, or give '
        f'{name}={example!r} or the like'
      )


def _check_has_ps(given: Mapping[str, str]) -> None:
  """Raises ValueError for several workers without a ps under the usual rule."""
  is_usual = given.keys().isdisjoint({'strategy', 'sync_replicas', 'like'})
  is_alone = given.get('num_workers') == '1'
  if is_usual and not is_alone and given.get('num_ps') == '0':
    raise ValueError(
      'num_ps=0: async_sgd, the usual strategy, needs a ps: give num_ps=1, or '
      "strategy='ring_allreduce'"
    )


def _check_batch(settings: Mapping[str, Any], train: fit_data.Examples) -> None:
  """Raises ValueError if a step of one worker takes more than all examples."""
  from distmnist.data import array_folder  # noqa: PLC0415  It needs NumPy.

  number = len(array_folder.flatten(train[1])[1][0])
  sizes = []
  for name in 'batch_size', 'gradient_accumulation':
    try:
      sizes.append(int(settings.get(name, 1)))
    except ValueError:  # launch says what is wrong with it.
      return
  if sizes[0] * sizes[1] > number:
    times = f' times gradient_accumulation={sizes[1]}' if sizes[1] > 1 else ''
    raise ValueError(
      f'batch_size={sizes[0]}{times} is larger than the {number} training '
      'examples'
    )


def _check_direction(best: str) -> None:
  """Raises ValueError unless it is + or - and what fit calls a metric."""
  if best[0] not in '+-':
    example = '+' + best.removeprefix('val_')
    raise ValueError(
      f'best={best!r}: expected + if more of it is better, such as '
      f'{example!r}, or - if less is'
    )
  if best[1:].startswith('val_'):
    raise ValueError(
      f'best={best!r}: expected {best[0] + best[5:]!r}, without val_: what '
      'is measured on the validation data'
    )


def _check_is_measured(model: keras.Model, best: str) -> None:
  """Raises ValueError if `best` is no metric of a compiled model.

  What only the tasks can name, such as a metric's class, they check.
  """
  import keras  # noqa: PLC0415  Keeps `import distmnist` cheap.

  from distmnist import tf_internals  # noqa: PLC0415  With a model, it is there.

  compiled = tf_internals.get_compile_arguments(model)
  if not compiled:
    return
  names = ['loss']
  for kind in 'metrics', 'weighted_metrics':
    for part in keras.tree.flatten(compiled.get(kind) or []):
      if isinstance(part, keras.metrics.Metric):
        name = part.name
      elif isinstance(part, str):
        name = part
      elif inspect.isfunction(part):
        name = part.__name__
      else:
        return
      is_taken = kind == 'weighted_metrics' and name in names
      names.append(f'weighted_{name}' if is_taken else name)
  if best[1:] not in names:
    raise ValueError(
      f'best={best!r}: no metric is {best[1:]!r}: expected one of '
      f'{", ".join(sorted(names))}'
    )


def _find_judged(given: Mapping[str, str]) -> str:
  """Returns the flag that needs validation data, '' if none does."""
  if given.get('early_stopping_patience', '0') != '0':
    return 'early_stopping_patience'
  if given.get('best'):
    return f'best={given["best"]!r}'
  return 'lr_schedule=plateau' * (given.get('lr_schedule') == 'plateau')


def _check_layers(model: keras.Model) -> None:
  """Raises ValueError if it is no model, or if a layer looks words up."""
  import keras  # noqa: PLC0415  Keeps `import distmnist` cheap.

  from distmnist import tf_internals  # noqa: PLC0415  With a model, it is there.

  if not isinstance(model, keras.Model):
    raise ValueError(
      f'the model is of type {type(model).__name__}: expected a keras.Model '
      'of Keras 3, compiled'
    )
  for layer in tf_internals.list_layers(model):
    names = {base.__name__ for base in type(layer).__mro__}
    if names & {'TextVectorization', 'IndexLookup'}:
      raise ValueError(
        f'the layer {layer.name!r} of the model looks words up, which a '
        f'training step cannot: apply it before fit, x = {layer.name}(x), and '
        'give fit the model without it'
      )


_HIDDEN = 'model', 'report', 'page', 'curves'


def reword_line(
  temporary: str | None, line: str, is_off: Container[str] = ()
) -> str | None:
  """Returns a line of the run in the words of fit, None to leave it out.

  Settings are called as the caller gives them, a problem is not his, and of a
  temporary folder only the logs that an error names stay.

  Args:
    temporary: that folder, or None.
    line: as the run prints it.
    is_off: the settings that are False, which the run calls --noNAME.
  """
  if 'failed call to cuInit' in line:  # There is no GPU.
    return None
  if temporary and temporary in line:
    line = re.sub(rf', logs in {re.escape(temporary)}\S*', '', line)
    if line.split(' ')[0] in _HIDDEN:
      return None
  if ': error: ' in line:
    line = re.sub(r' \(see \S+ --help\)', '', line)
    line = re.sub(r'--problem=fitted: (fitted\.py(:\d+)?, )?', '', line)
    line = re.sub(
      r'(?<![\w-])--(no(?=\w))?(\w+)',
      lambda match: match[2] if match[2] in is_off else match[0][2:],
      line,
    )
  return line


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
  _remove_left()
  prefix = f'{_PREFIX}{process_tag.make_tag()}_'
  temporary, kept = tempfile.mkdtemp(prefix=prefix), None
  try:
    yield temporary
  except process.Error:
    kept = _LOGS
    raise
  finally:
    for entry in os.scandir(temporary):
      if entry.name != kept:
        remove = paths.remove_folder if entry.is_dir() else paths.remove
        remove(entry.path)
    if not os.listdir(temporary):
      os.rmdir(temporary)


def _remove_left() -> None:
  """Removes the temporary folders that killed processes of this user have left.

  The logs of a training that failed, all that its folder has, stay.
  """
  for entry in os.scandir(tempfile.gettempdir()):
    match = re.fullmatch(rf'{_PREFIX}(\w+-\d+-\w+?)_\w+', entry.name)
    if not match or not process_tag.is_tag_dead(match[1]):
      continue
    with contextlib.suppress(OSError):
      is_folder = entry.is_dir(follow_symlinks=False)
      owner = entry.stat(follow_symlinks=False).st_uid
      is_mine = is_folder and owner == os.geteuid()
      if is_mine and os.listdir(entry.path) != [_LOGS]:
        paths.remove_folder(entry.path)


def _train(
  model: keras.Model,
  logdir: str,
  splits: fit_data.Splits,
  settings: Mapping[str, Any],
  schedule: keras_optimizer.Schedule | None,
  groups: tuple[groups_lib.Group, ...],
) -> training.Report:
  """Trains the model in place."""
  import keras  # noqa: PLC0415  Keeps `import distmnist` cheap.

  from distmnist import tf_internals  # noqa: PLC0415  With a model, it is there.
  from distmnist.data import fit_data  # noqa: PLC0415  It needs NumPy.
  from distmnist.training.problems import keras_checks  # noqa: PLC0415  Keras.

  if not model.built:
    model(
      keras.tree.map_structure(
        lambda a: keras.KerasTensor((None, *a.shape[1:]), a.dtype.name),
        splits['train'][0],
      )
    )
  keras_checks.check(model)
  loss = tf_internals.get_compile_arguments(model).get('loss')
  fit_data.check_labels(model, loss, splits)
  chosen = keras_groups.choose(groups, model)
  folder = layout.own_path(logdir, 'fitted')
  _hand_over(
    *(model, folder, splits, logdir, settings.get('resume'), schedule),
    keras_groups.find_places(chosen),
  )
  settings = {**settings, 'logdir': logdir, 'fitted_dir': folder}
  on_line, reword = settings.pop('on_line'), settings.pop('reword')
  words = process.make_words('fitted', settings)
  with training.start_words(words, on_line, reword, True) as run:
    report = run.result()
  path = os.path.join(logdir, 'model.keras')
  # Keras's own signature says object.
  trained: keras.Model = keras.models.load_model(path)  # type: ignore
  model.set_weights(trained.get_weights())
  return report


def _hand_over(
  model: keras.Model,
  folder: str,
  splits: fit_data.Splits,
  logdir: str,
  resume: str | None,
  schedule: keras_optimizer.Schedule | None,
  groups: dict[groups_lib.Group, list[int]],
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
    groups: see fitted.fill.

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
      fitted.fill(folder, model, splits, is_resumed, schedule, groups)
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
