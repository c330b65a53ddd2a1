"""Accuracy of variables at hand or of a checkpoint, on this machine alone."""

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.data import input_pipeline
from distmnist.logdir import checkpoints

# Chunks whose activations stay in the cache, and with large images in memory:
# this many images of MNIST, fewer of larger ones.
CHUNK_SIZE = 250
_CHUNK_PIXELS = CHUNK_SIZE * 28 * 28


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
        split.images, split.labels, compute_chunk_size(split.images.shape)
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
    try:
      self._saver.restore(self._session, path)
    except tf.errors.OpError as error:
      raise cli.RunError(
        f'checkpoint {path} is not whole: {errors.explain(error)}'
      ) from error
    return self._compute()

  def _compute(self):
    self._session.run(self._start)
    num_correct = 0
    while True:
      try:
        num_correct += int(self._session.run(self._num_correct))
      except tf.errors.OutOfRangeError:
        return num_correct / self._num_images


def compute_chunk_size(shape):
  """Returns how many images are evaluated at once, by [n, h, w, c]; int."""
  _, height, width, _ = shape
  return min(CHUNK_SIZE, max(1, _CHUNK_PIXELS // (height * width)))


def build_num_correct(logits, labels):
  """The images whose largest logit is the label's.

  float32 [n, classes], int32 [n] -> int32 scalar.
  """
  predictions = tf.argmax(logits, axis=1, output_type=tf.int32)
  return tf.reduce_sum(tf.cast(tf.equal(predictions, labels), tf.int32))
