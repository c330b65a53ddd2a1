"""The checkpoints in a folder: their files, which of them can be used."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.common import cli
from distmnist.logdir import checkpoint_reader
from distmnist.storage import paths, urls

_log = logging.getLogger(__name__)

# What may be wrong with a checkpoint.
NOT_WHOLE = 'is not whole'
DIVERGED = 'is of a training that has diverged'


def prefix(logdir: str) -> str:
  """The path of all checkpoints in `logdir`, without '-global_step'."""
  return os.path.join(logdir, 'model.ckpt')


def path_of_step(logdir: str, step: int) -> str:
  return f'{prefix(logdir)}-{step}'


def best_dir(logdir: str) -> str:
  """Where the checkpoint with the best validation metric is kept."""
  return os.path.join(logdir, 'best')


def find_latest(logdir: str) -> str | None:
  """Returns the path of the latest checkpoint, or None."""
  # Not tf.train.latest_checkpoint: it loses them if the folder was moved.
  found = list_checkpoints(logdir)
  return next((p for p in found if checkpoint_reader.is_there(p)), None)


def list_checkpoints(logdir: str) -> list[str]:
  """Returns the paths of the checkpoints in a folder, the latest first.

  They are those that TensorFlow's list names and those that exist: the list may
  be older than the folder, or lost. A checkpoint that lacks a file is listed,
  one that lacks all is not.
  """
  there = checkpoint_reader.trying(
    f'{prefix(logdir)}-*', lambda: paths.list_names(logdir)
  )
  names = [name[:-6] for name in there if name.endswith('.index')]
  # The list is damaged if the parser fails; a store needs none.
  with contextlib.suppress(ValueError, tf.errors.OpError):
    state = not urls.is_remote(logdir) and tf.train.get_checkpoint_state(logdir)
    if state:
      # The folder may have been moved since: only the names are valid.
      listed = map(os.path.basename, state.all_model_checkpoint_paths)
      names += [x for x in listed if any(n.startswith(f'{x}.') for n in there)]
  steps = {
    int(match[1])
    for name in names
    if (match := re.fullmatch(r'model\.ckpt-(\d+)', name))
  }
  return [path_of_step(logdir, step) for step in sorted(steps, reverse=True)]


def find_damage(path: str) -> str | None:
  """Returns why a checkpoint is not whole, or None if it is.

  Reads all of it: each tensor has a checksum.

  Raises:
    cli.PassingError: it cannot be read, and may be whole.
  """
  return _read_through(path)[0]


def find_fault(
  path: str,
  find_divergence: Callable[[str], str | None] = lambda path: None,
  on_slice: Callable[[], None] = lambda: None,
) -> tuple[str, str] | None:
  """Returns why a checkpoint is of no use, or None.

  Args:
    find_divergence: given the path of a whole one, says why its weights are
      unusable, if they are; see divergence.CheckpointCheck.
    on_slice: called before each slice that is read.

  Returns:
    (what, why): it is not whole, or has diverged.

  Raises:
    cli.PassingError: it cannot be read, and may be whole.
  """
  damage, nonfinite = _read_through(path, on_slice)
  if damage:
    return NOT_WHOLE, damage
  if nonfinite:
    return DIVERGED, f'{nonfinite} has numbers that are not finite'
  divergence = find_divergence(path)
  return (DIVERGED, divergence) if divergence else None


def _read_through(
  path: str, on_slice: Callable[[], None] = lambda: None
) -> tuple[str | None, str | None]:
  """Returns (damage, the first variable that is not finite)."""
  nonfinite = None
  try:
    with checkpoint_reader.Reader(path) as reader:
      for name in sorted(reader.shapes):
        # A table may be larger than this machine.
        for part in reader.find_slices(name):
          on_slice()
          # Each is gone before the next one is read.
          if not _is_finite(reader, name, part):
            nonfinite = nonfinite or name
  except checkpoint_reader.DamageError as error:
    return error.reason, None
  is_whole = 'global_step' in reader.shapes
  return None if is_whole else 'it has no global_step', nonfinite


def _is_finite(
  reader: checkpoint_reader.Reader, name: str, part: checkpoint_reader.Slice
) -> bool:
  """Reads a slice; returns whether it has no float that is not finite."""
  value = reader.read(name, part)
  return not reader.dtypes[name].is_floating or bool(np.isfinite(value).all())


_ADVICE = 'or begin anew with --resume=never, which moves them aside'


def find_usable(
  logdir: str,
  find_fault: Callable[[str], tuple[str, str] | None] = find_fault,
  advice: str = _ADVICE,
) -> str | None:
  """Returns the path of the latest checkpoint without a fault, or None.

  Args:
    find_fault: see above.
    advice: what else can be done if there is none.

  Raises:
    cli.RunError: there are some, but each has a fault.
    cli.PassingError: one cannot be read, and may be whole.
  """
  found = list_checkpoints(logdir)
  for path in found:
    fault = find_fault(path)
    if fault is None:
      return path
    _log.info(f'checkpoint {path} {fault[0]}, and not used: {fault[1]}')
  if found:
    raise cli.RunError(
      f'none of the checkpoints in {logdir} can be used: bring one back, '
      f'{advice}'
    )
  return None


def parse_step(path: str) -> int | None:
  """Returns the step in a checkpoint's name, or None.

  A checkpoint of an asynchronous rule may hold a step or two more.
  """
  match = re.search(r'-(\d+)$', path)
  return int(match[1]) if match else None


def read_step(path: str) -> int:
  """Returns the global_step of a checkpoint."""
  with checkpoint_reader.Reader(path) as reader:
    return int(reader.read('global_step'))


def find_files(path: str) -> list[str]:
  """Returns the paths of a checkpoint's files, the index last."""
  folder, name = os.path.split(path)
  names = [n for n in paths.list_names(folder) if n.startswith(f'{name}.')]
  names.sort(key=lambda name: (is_index(name), name))
  return [os.path.join(folder, n) for n in names]


def remove(path: str) -> None:
  """Removes a checkpoint, its index first; raises OSError."""
  for name in reversed(find_files(path)):
    paths.remove(name)


def is_index(name: str) -> bool:
  """Whether a file of this name shows that the checkpoint exists."""
  return name.endswith('.index')


def fetch_whole(
  session: tf.Session | tf.train.MonitoredSession,
  variables: Sequence[tf.Variable],
  first: Sequence[tf.Variable] = (),
) -> dict[str, np.ndarray]:
  """Returns variables by their names in a checkpoint, shards joined.

  Args:
    session: it has their values.
    variables: of a partitioned one, its shards.
    first: those of them to read before the others.
  """
  whole: dict[str, np.ndarray] = {}
  rest = [v for v in variables if not any(v is other for other in first)]
  values = [*session.run(list(first)), *session.run(rest)]
  for variable, value in zip([*first, *rest], values, strict=True):
    shard = tf_internals.get_slice(variable)
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
