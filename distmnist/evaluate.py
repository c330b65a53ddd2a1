"""Test accuracy of checkpoints, with no cluster.

  python -m distmnist.evaluate --logdir=/tmp/run

evaluates the latest checkpoint of a run. Model and data set are those that
the run was started with; flags given here win over them.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import sys
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import accuracy, checkpoints, cli, workload
from distmnist import evaluator as evaluator_lib

FLAGS = flags.FLAGS

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Which checkpoint: a path, a global step, or "best". By default the latest.',
)
_CONTINUOUS = flags.DEFINE_bool(
  'continuous', False, 'Evaluate each new checkpoint until the run has ended.'
)
_SPLIT = flags.DEFINE_enum(
  'split', 'test', ['test', 'validation', 'train'], 'The images to evaluate on.'
)


def find_checkpoint(logdir, which):
  """Returns the path of a checkpoint of `logdir`.

  Args:
    logdir: str.
    which: None for the latest, 'best', a global step in digits, or a path.

  Raises:
    cli.RunError: there is none.
  """
  if which is None:
    path = checkpoints.find_latest(logdir)
  elif which == 'best':
    path = checkpoints.find_latest(checkpoints.best_dir(logdir))
  elif which.isdigit():
    path = checkpoints.path_of_step(logdir, int(which))
  else:
    path = which
  if path is None or not tf.train.checkpoint_exists(path):
    what = 'a checkpoint' if which is None else f'checkpoint {which}'
    raise cli.RunError(f'{what} was not found in --logdir={logdir}')
  return path


def main():
  logdir = checkpoints.logdir_from_flags()
  if logdir is None:
    raise cli.UsageError('--logdir is missing: the directory of a run')
  saved_flags = _wait_for_flags(logdir, _CONTINUOUS.value * _timeout_secs())
  FLAGS([sys.argv[0], *saved_flags, *sys.argv[1:]], known_only=True)
  evaluator = accuracy.Evaluator(workload.make_model(), _load_split())
  if not _CONTINUOUS.value:
    path = find_checkpoint(logdir, _CHECKPOINT.value)
    evaluator_lib.report(evaluator, path, _SPLIT.value, _say)
    return
  for path in evaluator_lib.follow(logdir, _timeout_secs()):
    evaluator_lib.report_new(evaluator, path, _SPLIT.value, _say)


def run():
  cli.run(main)


def _timeout_secs():
  return evaluator_lib.timeout_secs_from_flags()


def _say(line):
  print(line, flush=True)


def _wait_for_flags(logdir, timeout_secs):
  """A continuous evaluator may be started before the run."""
  deadline = time.monotonic() + timeout_secs
  while True:
    try:
      return checkpoints.read_flags(logdir)
    except cli.RunError:
      if time.monotonic() >= deadline:
        raise
    time.sleep(0.2)


def _load_split():
  if _SPLIT.value == 'test':
    return workload.load_test_split()
  train, validation = workload.load_training_splits()
  split = train if _SPLIT.value == 'train' else validation
  if not len(split.images):
    raise cli.UsageError('--split=validation is empty: --validation_images=0')
  return split


if __name__ == '__main__':
  run()
