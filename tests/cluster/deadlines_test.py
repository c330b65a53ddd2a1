"""deadlines: what returns in time, and what does not."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines


def test_what_returns_or_raises_in_time_does_so_here():
  assert deadlines.call(lambda: 7, 60) == 7
  with pytest.raises(ZeroDivisionError):
    deadlines.call(lambda: 1 / 0, 60)


def test_what_does_not_return_is_left_alone():
  is_over = threading.Event()
  with pytest.raises(tf.errors.DeadlineExceededError, match='within 0.1 s'):
    deadlines.call(lambda: is_over.wait(60), 0.1)
  is_over.set()
