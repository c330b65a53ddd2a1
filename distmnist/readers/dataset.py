"""A user's own tf.data.Dataset, told which examples to make.

A problem that has

  num_examples = 60_000

  def stream(indices):
    return indices.map(read_one, num_parallel_calls=4)

trains on what `stream` makes of a tf.data.Dataset of example numbers, int64
scalars: one (x, y), or (x, y, weight), for each, in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.data import input_pipeline
from distmnist.readers import graph_function


class Reader:
  """Examples of such a function; see data/streamed.py.

  Attributes:
    num_examples: how many examples `stream` can make.
  """

  def __init__(
    self,
    num_examples: Any,
    stream: Callable[[tf.data.Dataset], tf.data.Dataset],
  ) -> None:
    """Builds the graph.

    Args:
      stream: makes (x, y) or (x, y, w) of each number.

    Raises:
      ValueError: `num_examples` is not an int of at least 1, or `stream`
        returns something else.
    """
    if not isinstance(num_examples, int) or num_examples < 1:
      raise ValueError(
        f'num_examples is {num_examples!r}: expected how many examples stream '
        'can make, an int'
      )
    self.num_examples = num_examples
    self._lock = threading.Lock()  # One pass at a time.
    with tf.Graph().as_default() as graph:
      self._fed = tf.placeholder(tf.int64, [None])
      made = stream(tf.data.Dataset.from_tensor_slices(self._fed))
      spec = tf.data.get_output_types(made)
      if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise ValueError(
          'stream() gave a data set of other things than (x, y): expected '
          'those of one example, or (x, y, weight)'
        )
      # One more than there should be, so that an extra example is noticed.
      size = tf.shape(self._fed, out_type=tf.int64)[0] + 1
      iterator = tf.data.make_initializable_iterator(
        made.batch(size).with_options(input_pipeline.make_dataset_options())
      )
      self._start = iterator.initializer
      self._next = iterator.get_next()
    self._session = graph_function.make_session(graph)

  def read(self, indices: np.ndarray) -> tuple[Any, ...]:
    """Returns what `stream` makes of these numbers, (x, y) or (x, y, w).

    Raises:
      ValueError: `stream` gives no example.
      tf.errors.OpError: `stream` fails.
    """
    with self._lock:
      self._session.run(self._start, {self._fed: indices})
      try:
        return self._session.run(self._next)
      except tf.errors.OutOfRangeError as error:
        raise ValueError(
          f'stream() gave no example for {len(indices)} numbers'
        ) from error
