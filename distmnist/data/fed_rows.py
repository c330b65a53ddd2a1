"""Where a graph is told which images each step of a session.run takes."""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

# Of the graph: its FedRows.
COLLECTION = 'distmnist/fed_rows'


class FedRows(NamedTuple):
  """A row of numbers for each step of a run.

  Attributes:
    fed: int64 placeholder [num_steps, 1 + batch_size]: the place of the batch
      in the stream, which random ops go by, and the indices of its images.
    row: int64 [1 + batch_size], the first; a copy of the step has another one.
  """

  fed: tf.Tensor
  row: tf.Tensor


def build(batch_size):
  """Returns the FedRows of the default graph, on the device of the moment."""
  fed = tf.placeholder(tf.int64, [None, 1 + batch_size], 'batches')
  rows = FedRows(fed, find_row(fed, 0))
  tf.add_to_collection(COLLECTION, rows)
  return rows


def find_row(fed, number):
  """Returns row `number` of `fed`."""
  with tf.device(fed.device):
    return tf.identity(fed[number])
