"""Test accuracy, of variables at hand or of checkpoints, with no cluster.

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

from distmnist import checkpoints, cli, input_pipeline, workload

FLAGS = flags.FLAGS

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  None,
  'Which checkpoint: a path, a global step, or "best". By default the latest.',
)
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

# What a chunk's activations take stays near the caches.
CHUNK_SIZE = 250


class Evaluator:
  """Accuracy on a split, in a graph and a session of its own on this machine.

  It takes the values of the variables from wherever they are, so that no
  cluster has to stay for it.
  """

  def __init__(self, build_model, split, config=None):
    """Builds the graph.

    Args:
      build_model: build(images, is_training) -> logits.
      split: workload.Split.
      config: tf.ConfigProto or None.
    """
    self._num_images = len(split.images)
    with tf.Graph().as_default() as graph:
      images, labels, self._start = input_pipeline.build_chunks(
        split.images, split.labels, CHUNK_SIZE
      )
      logits = build_model(images, is_training=False)
      self._num_correct = build_num_correct(logits, labels)
      self._variables = tf.global_variables()
      self._saver = tf.train.Saver(self._variables)
    self._session = tf.Session(graph=graph, config=config)

  def compute(self, values):
    """Returns the accuracy, float in 0..1: the share of right answers.

    Args:
      values: dict of variable name -> array; see checkpoints.fetch_whole.
    """
    self._session.run(
      [v.initializer for v in self._variables],
      {v.initializer.inputs[1]: values[v.op.name] for v in self._variables},
    )
    return self._compute()

  def compute_checkpoint(self, path):
    """Returns the accuracy of the checkpoint `path`, float in 0..1.

    Raises:
      cli.RunError: the checkpoint is unreadable or of another model.
    """
    checkpoints.check_fits(path, self._variables)
    self._saver.restore(self._session, path)
    return self._compute()

  def _compute(self):
    self._session.run(self._start)
    num_correct = 0
    while True:
      try:
        num_correct += int(self._session.run(self._num_correct))
      except tf.errors.OutOfRangeError:
        return num_correct / self._num_images


def build_num_correct(logits, labels):
  """The images whose largest logit is the label's.

  float32 [n, classes], int32 [n] -> int32 scalar.
  """
  predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
  return tf.reduce_sum(tf.cast(tf.equal(predictions, labels), tf.int32))


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
  evaluator = Evaluator(workload.make_model(), _load_split())
  if not _CONTINUOUS.value:
    _report(evaluator, find_checkpoint(logdir, _CHECKPOINT.value))
    return
  for path in _wait_for_checkpoints(logdir, _timeout_secs()):
    _report(evaluator, path)


def run():
  cli.run(main)


def _timeout_secs():
  return _CONTINUOUS_TIMEOUT_SECS.value


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
  accuracy = evaluator.compute_checkpoint(path)
  step = checkpoints.read_step(path)
  print(f'step {step}  {_SPLIT.value} accuracy {accuracy:.4f}  {path}')
  sys.stdout.flush()


if __name__ == '__main__':
  run()
