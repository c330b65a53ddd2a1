"""What went wrong with which task, in words; which errors are losses."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors


def test_of_many_tasks_some_are_named():
  few = {f'worker {i}': f'a:{i}' for i in range(8)}
  assert errors.list_tasks(few).count(' at ') == 8
  many = errors.list_tasks({f'worker {i}': f'a:{i}' for i in range(310)})
  assert many.startswith('worker 0 at a:0, worker 1 at a:1, ')
  assert many.endswith('worker 6 at a:6, 303 more')


@pytest.mark.parametrize(
  'message',
  [
    'no route\nAdditional: x',
    'Graph execution error:\n\nFrom /job:worker/replica:0/task:0:\nno route',
    'INVALID_ARGUMENT: From /job:worker/replica:0/task:0:\nno route',
    '2 root error(s) found.\n'
    '  (0) INVALID_ARGUMENT: From /job:ps/replica:0/task:0:\n'
    'no route\n  (1) CANCELLED: x',
    '2 root error(s) found.\n  (0) UNAVAILABLE: no route\n  (1) CANCELLED: x',
  ],
)
def test_an_error_is_told_in_its_first_line(message):
  error = tf.errors.UnavailableError(None, None, message)
  assert errors.explain(error) == 'no route'


@pytest.mark.parametrize(
  'kind, is_loss',
  [
    (tf.errors.UnavailableError, True),
    (tf.errors.AbortedError, True),
    (tf.errors.InvalidArgumentError, False),
    (tf.errors.ResourceExhaustedError, False),
  ],
)
def test_a_task_that_is_gone_is_a_loss(kind, is_loss):
  assert errors.is_loss(kind(None, None, 'x')) == is_loss


def test_an_op_that_was_cancelled_because_of_a_loss_is_one():
  with pytest.raises(tf.errors.AbortedError), errors.naming_losses():
    raise tf.errors.CancelledError(None, None, 'RecvFromRemote: UNAVAILABLE')


def test_other_errors_are_left_as_they_are():
  with pytest.raises(tf.errors.CancelledError), errors.naming_losses():
    raise tf.errors.CancelledError(None, None, 'the step was cancelled')
