"""The log directory: checkpoints, and the flags that they were made with."""

import contextlib
import glob
import os
import re
import shutil
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cli, cluster, strategy, tasks

FLAGS = flags.FLAGS
_FLAGS_FILE = 'train.flags'
_REPORT_FILE = 'report.json'
_SIGNATURE_FILE = 'chief'

_LOGDIR = flags.DEFINE_string(
  'logdir',
  None,
  'Directory for checkpoints, summaries and report.json; all workers share it. '
  'Without it nothing is written.',
)
_RESUME = flags.DEFINE_string(
  'resume',
  'auto',
  'What the training begins with. auto: the latest whole checkpoint in '
  '--logdir, if there is one; never: the first weights; anything else: this '
  'checkpoint, by its path without an ending, or the latest of this folder. '
  'But for auto, what an earlier run has left in --logdir is moved aside.',
)
_KEEP_CHECKPOINTS = flags.DEFINE_integer(
  'keep_checkpoints',
  5,
  'How many of the last checkpoints are kept, beside the best.',
  lower_bound=1,
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


def sign(logdir, life):
  """Leaves the chief's `life`, a str, for the workers that share the folder."""
  with open(os.path.join(logdir, _SIGNATURE_FILE), 'w', encoding='utf-8') as f:
    f.write(life)


def is_signed(logdir, life):
  """Whether the chief with this `life` has this very folder."""
  try:
    with open(os.path.join(logdir, _SIGNATURE_FILE), encoding='utf-8') as f:
      return f.read() == life
  except OSError:
    return False


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


def report_time(logdir):
  """Returns when the report was written, an int, or None if there is none."""
  try:
    return os.stat(report_path(logdir)).st_mtime_ns
  except OSError:
    return None


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
  # Not tf.train.latest_checkpoint: it loses them if the folder was moved.
  paths = list_checkpoints(logdir)
  return next((p for p in paths if os.path.exists(f'{p}.index')), None)


def list_checkpoints(logdir):
  """Returns the paths of the checkpoints in a folder, the latest first."""
  try:
    state = tf.train.get_checkpoint_state(logdir)
  except ValueError:  # It is not whole either.
    state = None
  if state:
    # The folder may have been moved since: only the names are true.
    names = map(os.path.basename, reversed(state.all_model_checkpoint_paths))
    return [os.path.join(logdir, name) for name in names]
  found = {}
  for name in os.listdir(logdir) if os.path.isdir(logdir) else []:
    if match := re.fullmatch(r'(model\.ckpt-(\d+))\.index', name):
      found[int(match[2])] = os.path.join(logdir, match[1])
  return [found[step] for step in sorted(found, reverse=True)]


def find_damage(path):
  """Returns why a checkpoint is not whole (str), or None if it is.

  Reads all of it: each tensor has a checksum.
  """
  try:
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    for name in names:
      reader.get_tensor(name)
    return None if 'global_step' in names else 'it has no global_step'
  except tf.errors.OpError as error:
    return cluster.explain(error)
  except Exception as error:  # The reader has many kinds for broken bytes.
    return (str(error) or type(error).__name__).splitlines()[0]


def find_whole(logdir, say):
  """Returns the path of the latest checkpoint that is whole, or None.

  Args:
    logdir: str.
    say: callable that prints a line, told of each that is not whole.

  Raises:
    cli.RunError: there are some, but none is whole.
  """
  paths = list_checkpoints(logdir)
  for path in paths:
    damage = find_damage(path)
    if damage is None:
      return path
    say(f'checkpoint {path} is not whole, and not used: {damage}')
  if paths:
    raise cli.RunError(
      f'none of the checkpoints in {logdir} is whole: bring one back, or begin '
      'anew with --resume=never, which moves them aside'
    )
  return None


class Restart:
  """What a training begins with, and goes back to when a ps is lost.

  The first is what --resume says; from then on it is the latest whole
  checkpoint of this very training.
  """

  def __init__(self, logdir, resume, last_step, say):
    """
    Args:
      logdir: str or None.
      resume: str, the value of --resume.
      last_step: int, the global step at which training ends.
      say: callable that prints a line.
    """
    self._logdir = logdir
    self._resume = os.path.expanduser(resume)
    self._last_step = last_step
    self._say = say
    self._given = None
    self._found = None

  def prepare(self):
    """Looks at --resume; the chief's to do, before anything is written.

    A task that its launcher has started again is amid a training: then
    --resume is done with.

    Raises:
      cli.UsageError: there is no such checkpoint.
      cli.RunError: it is not whole, or the logdir cannot be written.
    """
    if self._resume == 'auto' or tasks.ATTEMPT in os.environ:
      return
    if self._resume != 'never':
      self._given = self._find_given()
    if self._logdir:
      aside = _move_aside(self._logdir, self._say)
      if self._given and _is_in(self._given, self._logdir):
        self._given = os.path.join(aside, os.path.basename(self._given))

  def _find_given(self):
    wanted = self._resume
    is_folder = os.path.isdir(wanted)
    path = find_whole(wanted, self._say) if is_folder else wanted
    if not path or not os.path.exists(f'{path}.index'):
      raise cli.UsageError(
        f'--resume={wanted}: no checkpoint there; give auto, never, a folder '
        'with checkpoints, or the path of one without its ending, such as '
        'run/model.ckpt-100'
      )
    if not is_folder and (damage := find_damage(path)):
      raise cli.RunError(f'--resume={path} is not whole: {damage}')
    return path

  def find(self):
    """Returns the checkpoint to restore, or None for the first weights."""
    if not self._found and self._logdir:
      self._found = find_whole(self._logdir, self._say)
    return self._found or self._given

  def is_finished(self):
    """Whether the latest checkpoint is the end of the training."""
    path = self.find()
    return bool(path) and read_step(path) >= self._last_step

  def remember(self, saver):
    """Tells a new `saver` of the older checkpoints, so that it drops them.

    The training goes on from here: the next `find` looks anew.
    """
    self._found = None
    if self._logdir:
      saver.recover_last_checkpoints(list_checkpoints(self._logdir)[::-1])


def restart_from_flags(logdir, last_step, say):
  """Returns the Restart that --resume asks for."""
  return Restart(logdir, _RESUME.value, last_step, say)


def saver_from_flags():
  """Returns the Saver of all variables, which are there already."""
  return tf.train.Saver(max_to_keep=_KEEP_CHECKPOINTS.value)


def save(saver, session, logdir, step):
  """Writes logdir/model.ckpt-`step`: whole, and to the disk itself.

  Raises:
    cli.RunError: the disk is full, or the folder cannot be written any more.
    tf.errors.OpError: a ps is gone.
  """
  path = path_of_step(logdir, step)
  try:
    saver.save(session, prefix(logdir), step, write_meta_graph=False)
    for name in [*glob.glob(f'{glob.escape(path)}.*'), logdir]:
      file = os.open(name, os.O_RDONLY)
      os.fsync(file)
      os.close(file)
  except (tf.errors.OpError, OSError, ValueError) as error:
    for name in glob.glob(f'{glob.escape(path)}.*'):
      with contextlib.suppress(OSError):
        os.remove(name)
    if isinstance(error, tf.errors.OpError):
      # A ps that dies in the midst of it fails the op that writes, too.
      is_write = error.op is None or error.op.type == 'SaveV2'
      if cluster.is_loss(error) or not is_write:
        raise
      reason = cluster.explain(error)
    else:
      reason = getattr(error, 'strerror', None) or str(error)
    raise cli.RunError(
      f'cannot write checkpoint {path}: {reason}; make room there, or give '
      'another --logdir; the checkpoints before it are untouched'
    ) from error


def check_space(logdir, variables):
  """Checks that a checkpoint of `variables` (list) fits on the disk.

  Raises:
    cli.RunError: it does not.
  """
  needed = strategy.count_bytes(variables)
  free = shutil.disk_usage(logdir).free
  if free < needed:
    raise cli.RunError(
      f'--logdir={logdir}: {free / 1e6:,.1f} MB are free, and one checkpoint '
      f'takes {needed / 1e6:,.1f} MB; make room, or give another --logdir'
    )


def _move_aside(logdir, say):
  """Moves what an earlier run has left into a folder of its own.

  Returns:
    str, the folder, or None if there was nothing.
  """
  names = [
    name
    for name in (os.listdir(logdir) if os.path.isdir(logdir) else [])
    if re.match(r'checkpoint$|model\.ckpt|best$|worker_\d+$|validation$', name)
  ]
  if not names:
    return None
  try:
    aside = tempfile.mkdtemp(prefix='earlier_', dir=logdir)
    for name in names:
      os.rename(os.path.join(logdir, name), os.path.join(aside, name))
  except OSError as error:
    raise cli.RunError(
      f'--logdir={logdir} cannot be written: {error.strerror}'
    ) from error
  say(f'the earlier run in {logdir} is now in {aside}')
  return aside


def _is_in(path, folder):
  return os.path.realpath(os.path.dirname(path)) == os.path.realpath(folder)


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
