"""The log directory: checkpoints, and the flags that they were made with."""

import contextlib
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cli

FLAGS = flags.FLAGS
_FLAGS_FILE = 'train.flags'
_REPORT_FILE = 'report.json'

_LOGDIR = flags.DEFINE_string(
  'logdir',
  None,
  'Directory for checkpoints, summaries and report.json; all workers share it. '
  'A run resumes from the latest checkpoint there. Without it nothing is '
  'written.',
)


def logdir_from_flags():
  """Returns the log directory, or None."""
  return os.path.expanduser(_LOGDIR.value) if _LOGDIR.value else None


def make_logdir(logdir, is_chief):
  """Makes the directory and checks that this process can write there.

  The chief keeps the flags of the run there, so that evaluate needs none of
  them, and takes away the report of an earlier run.

  Raises:
    cli.RunError: it cannot be written.
  """
  try:
    os.makedirs(logdir, exist_ok=True)
    with tempfile.TemporaryFile(dir=logdir):
      pass
    if is_chief:
      with contextlib.suppress(FileNotFoundError):
        os.remove(report_path(logdir))
      path = os.path.join(logdir, _FLAGS_FILE)
      with open(path + '.new', 'w', encoding='utf-8') as file:
        file.writelines(
          flag.serialize() + '\n'
          for flag in our_flags()
          if flag.name != 'logdir' and flag.value is not None
        )
      os.replace(path + '.new', path)
  except OSError as error:
    raise cli.RunError(
      f'--logdir={logdir} cannot be written: {error.strerror}; choose a '
      'directory of your own'
    ) from error


def our_flags():
  """Returns the flags that distmnist defines, a list of absl Flags."""
  modules = FLAGS.flags_by_module_dict()
  return [
    flag
    for name in sorted(modules)
    if cli.is_ours(name)
    for flag in modules[name]
  ]


def read_flags(logdir):
  """Returns the list of flags kept by `make_logdir`.

  Raises:
    cli.RunError: there are none.
  """
  path = os.path.join(logdir, _FLAGS_FILE)
  try:
    with open(path, encoding='utf-8') as file:
      return file.read().splitlines()
  except OSError as error:
    raise cli.RunError(
      f'no run of distmnist.train in --logdir={logdir}: {path} cannot be read '
      f'({error.strerror})'
    ) from error


def report_path(logdir):
  return os.path.join(logdir, _REPORT_FILE)


def has_ended(logdir):
  """Whether the run has written its report, which it does last."""
  return os.path.exists(report_path(logdir))


def prefix(logdir):
  """The path of all checkpoints of `logdir`, less their '-global_step'."""
  return os.path.join(logdir, 'model.ckpt')


def path_of_step(logdir, step):
  return f'{prefix(logdir)}-{step}'


def best_dir(logdir):
  """Where the checkpoint with the best validation accuracy is kept."""
  return os.path.join(logdir, 'best')


def find_latest(logdir):
  """Returns the path of the latest checkpoint, or None."""
  return tf.train.latest_checkpoint(logdir)


def read_step(path):
  """Returns the global_step, int, of a checkpoint."""
  return int(tf.train.load_checkpoint(path).get_tensor('global_step'))


def check_fits(path, variables):
  """Checks a checkpoint against the variables that shall be restored from it.

  Whole variables are compared, so that the number of shards does not matter.

  Args:
    path: str, a checkpoint.
    variables: list of tf.Variable; of a partitioned one, its shards.

  Raises:
    cli.RunError: unreadable, a variable is missing or has another shape.
  """
  try:
    found = tf.train.load_checkpoint(path).get_variable_to_shape_map()
  except (tf.errors.OpError, ValueError) as error:
    raise cli.RunError(
      f'checkpoint {path} cannot be read: {getattr(error, "message", error)}'
    ) from error
  for name, shape in _whole_shapes(variables).items():
    if name not in found:
      raise cli.RunError(
        f'checkpoint {path} has no {name}: it comes from another model or '
        'optimizer; give the flags it was trained with, or another --logdir'
      )
    if found[name] != shape:
      raise cli.RunError(
        f'checkpoint {path} has {name} with shape {found[name]}, but the model '
        f'has {shape}: it comes from another model; give the flags it was '
        'trained with, or another --logdir'
      )


def fetch_whole(session, variables):
  """Returns {name in a checkpoint: array}, each variable's shards as one.

  Args:
    session: tf.Session.
    variables: list of tf.Variable; of a partitioned one, its shards.
  """
  whole = {}
  values = session.run(variables)
  for variable, value in zip(variables, values, strict=True):
    shard = variable._get_save_slice_info()
    if shard is None:
      whole[variable.op.name] = value
      continue
    place = tuple(
      slice(start, start + size)
      for start, size in zip(shard.var_offset, shard.var_shape, strict=True)
    )
    array = np.empty(shard.full_shape, value.dtype)
    whole.setdefault(shard.full_name, array)[place] = value
  return whole


def _whole_shapes(variables):
  """Returns {name in the checkpoint: whole shape as a list}."""
  shapes = {}
  for variable in variables:
    shard = variable._get_save_slice_info()  # The only place that knows it.
    if shard is None:
      shapes[variable.op.name] = variable.shape.as_list()
    else:
      shapes[shard.full_name] = list(shard.full_shape)
  return shapes
