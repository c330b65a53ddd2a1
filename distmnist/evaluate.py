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

from distmnist import accuracy, checkpoints, cli, saved_run, workload

_CONTINUOUS = flags.DEFINE_bool(
  'continuous', False, 'Evaluate each new checkpoint until the run has ended.'
)
_CONTINUOUS_TIMEOUT_SECS = flags.DEFINE_float(
  'continuous_timeout_secs',
  600,
  '--continuous: end when no new checkpoint came for so long, in seconds.',
  lower_bound=0,
)
_SPLIT = flags.DEFINE_enum(
  'split', 'test', ['test', 'validation', 'train'], 'The images to evaluate on.'
)


def main():
  logdir = saved_run.logdir_from_flags()
  # A continuous evaluator may be started before the run.
  saved_run.take_flags(logdir, _CONTINUOUS.value * _timeout_secs())
  evaluator = accuracy.Evaluator(workload.make_model(), _load_split())
  if not _CONTINUOUS.value:
    _report(evaluator, saved_run.find_checkpoint(logdir))
    return
  for path in _wait_for_checkpoints(logdir, _timeout_secs()):
    _report(evaluator, path)


def run():
  cli.run(main)


def _timeout_secs():
  return _CONTINUOUS_TIMEOUT_SECS.value


def _wait_for_checkpoints(logdir, timeout_secs):
  """Yields each new checkpoint until the run ends or none comes any more."""

  def is_over():
    return checkpoints.has_ended(logdir) or time.monotonic() > deadline

  deadline = time.monotonic() + timeout_secs
  for path in tf.train.checkpoints_iterator(
    logdir, timeout=1, timeout_fn=is_over
  ):
    yield path
    deadline = time.monotonic() + timeout_secs


def _load_split():
  if _SPLIT.value == 'test':
    return workload.load_test_split()
  train, validation = workload.load_training_splits()
  split = train if _SPLIT.value == 'train' else validation
  if not len(split.images):
    raise cli.UsageError('--split=validation is empty: --validation_images=0')
  return split


def _report(evaluator, path):
  found = evaluator.compute_checkpoint(path)
  step = checkpoints.read_step(path)
  print(f'step {step}  {_SPLIT.value} accuracy {found:.4f}  {path}')
  sys.stdout.flush()


if __name__ == '__main__':
  run()
