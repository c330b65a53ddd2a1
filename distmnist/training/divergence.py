"""Whether training can resume from a checkpoint, or has diverged there.

A step's cost is computed from the weights before it, so a checkpoint may hold
weights whose cost is not known. It is computed before they are restored, with
only those rows of large tables that the examples look up.
"""

import math

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.data import split as split_lib
from distmnist.exchange.tables import stored_table
from distmnist.lifecycle import restorable
from distmnist.logdir import slice_reader
from distmnist.training import evaluation
from distmnist.training.problems import problem as problem_lib

_MAX_EXAMPLES = 100
_NUM_DRAWN = 10


def without_data(problem, image_shape):
  """Returns a CostCheck for a program without images, maybe without a GPU.

  A sane model has a finite cost for any pixels.

  Args:
    problem: problem.Problem of images.
    image_shape: (height, width, channels).
  """
  images = np.random.default_rng(0).integers(
    256, size=(_NUM_DRAWN, *image_shape), dtype=np.uint8
  )
  labels = np.zeros(_NUM_DRAWN, np.int32)
  config = tf.ConfigProto(device_count={'GPU': 0})
  return CostCheck(problem, split_lib.Split(images, labels), config)


class CostCheck:
  """Computes the cost of some examples from checkpoints, on this machine alone.

  The graph is built only for the first checkpoint: a training that resumes
  nothing pays nothing.
  """

  def __init__(self, problem, split, config=None):
    """
    Args:
      problem: problem.Problem.
      split: split.Split.
      config: tf.ConfigProto or None.
    """
    self._problem = problem
    self._split = split
    self._config = config
    self._graph = None

  def find(self, path):
    """Returns what is wrong with the cost (str), or None if it is finite.

    Args:
      path: str, a complete checkpoint.

    Raises:
      cli.RunError: it belongs to another model.
    """
    if self._graph is None:
      self._graph = self._build()
    with tf.Session(graph=self._graph, config=self._config) as session:
      session.run(self._others)
      restorable.restore(
        path, session, self._saver, self._expected, self._tables.new_rows
      )
      wanted = self._tables.ask(session)
      rows = slice_reader.read(
        path, lambda reader: self._tables.read(reader, wanted)
      )
      cost = float(session.run(self._cost, rows))
    if math.isfinite(cost):
      return None
    return f'the cost computed from it is {cost}'

  def _build(self):
    problem = self._problem
    chunk_size = evaluation.compute_chunk_size(self._split.spec.x)
    some = self._split.slice(0, min(_MAX_EXAMPLES, chunk_size))
    self._tables = stored_table.StoredTables()
    with problem_lib.open_graph() as graph:
      batch = some.pack([tf.constant(array) for array in some.arrays()])
      x, y = problem.preprocess(*batch, is_training=False)
      with self._tables.scope():
        self._cost, _ = problem.loss(y, problem.build(x, is_training=False))
      variables = {v.op.name: v for v in tf.global_variables()}
      self._saver = tf.train.Saver(list(variables.values()), allow_empty=True)
      self._expected = {**variables, **self._tables.specs}
      # Lookup tables of words, and what a loss counts.
      self._others = tf.tables_initializer(), tf.local_variables_initializer()
    return graph
