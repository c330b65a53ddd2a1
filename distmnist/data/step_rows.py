"""Tells a graph which images each step of a session.run takes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import graph_record


class StepRows(NamedTuple):
  """A row of numbers for each step of a run.

  Attributes:
    fed: int64 placeholder [num_steps, 1 + batch_size]: the place of the batch
      in the stream, which random ops depend on, and the indices of its images.
    row: int64 [1 + batch_size], the first row; a copy of the step has another.
  """

  fed: tf.Tensor
  row: tf.Tensor


def build(batch_size: int) -> StepRows:
  """Builds the StepRows of the default graph, on the current device."""
  fed = tf.placeholder(tf.int64, [None, 1 + batch_size], 'batches')
  rows = StepRows(fed, find_row(fed, 0))
  graph_record.current().step_rows.append(rows)
  return rows


def get_all() -> list[StepRows]:
  """Returns the StepRows of the default graph."""
  return list(graph_record.current().step_rows)


def find_row(fed: tf.Tensor, number: int) -> tf.Tensor:
  """Returns row `number` of `fed`."""
  with tf.device(fed.device):
    return tf.identity(fed[number])
