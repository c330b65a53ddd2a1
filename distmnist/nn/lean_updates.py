"""Optimizers that need few messages to update variables on many ps."""

import functools

import tensorflow.compat.v1 as tf


def make_lean(optimizer):
  """Makes a tf.train.Optimizer send no constants and wait once for each ps."""
  optimizer._prepare = functools.partial(
    _prepare_numbers, optimizer, optimizer._prepare
  )
  optimizer._finish = functools.partial(_finish_by_device, optimizer._finish)


def make_number(value):
  """Returns `value` as a float, or unchanged if it is a tensor that may change.

  The float becomes a constant where it is used, and is sent to no other ps.
  """
  number = tf.get_static_value(value)
  return value if number is None else float(number)


def _prepare_numbers(optimizer, prepare):
  """Calls `prepare` and turns the constants that it has made into numbers.

  As a tensor, Adam's beta is made where apply_gradients was called: a worker
  would send it to each ps in each step, and a message often costs more than an
  update. From a number, each update makes a constant next to its variable.
  """
  prepare()
  for name, value in vars(optimizer).items():
    if tf.is_tensor(value):
      setattr(optimizer, name, make_number(value))


def _finish_by_device(finish, update_ops, name):
  """Calls `finish` with the updates of each device grouped into one op.

  Otherwise an op that waits for them on another ps, as Adam's powers do, would
  get a message from each.
  """
  devices = {}
  for op in update_ops:
    devices.setdefault(op.device, []).append(op)
  grouped = []
  for device, ops in devices.items():
    with tf.device(device), tf.control_dependencies(ops):
      grouped.append(tf.no_op('updated'))
  return finish(grouped, name)
