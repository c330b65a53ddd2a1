"""TensorFlow as the runtime of classic graphs: imported once and quietly.

A program imports this module before any other that imports TensorFlow; the
settings below are read while it is imported or when the first server starts.
"""

import contextlib
import ctypes
import os
import platform
import sys

from distmnist.common import request_ids

# 3 hides the C++ errors of a recovery that Python reports anyway.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Without it Session.close() waits for ever for a ps that is dead.
os.environ.setdefault('GRPC_FAIL_FAST', 'true')
# gRPC asks for names as we do, by the system's own resolver: its own one knows
# neither nsswitch.conf nor mDNS, and then a host answers us but not TensorFlow.
os.environ.setdefault('GRPC_DNS_RESOLVER', 'native')
# A ps that comes back is found within a third of a second.
os.environ.setdefault(
  'TF_GRPC_DEFAULT_OPTIONS',
  'grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=300',
)
# By default TensorFlow leaves oneDNN's convolutions to processors with AVX512;
# with AVX2 they halve the processor time of a step of the cnn as well.
if platform.machine() in ('x86_64', 'AMD64'):
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')


def _keep_freed_memory():
  """Lets glibc keep the memory of a step's tensors for the next step.

  By default it gives large blocks back to the kernel and gets them again page
  by page: 14 % of the processor time of a step of the cnn.
  """
  mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # From malloc.h.
  with contextlib.suppress(OSError, AttributeError):  # Not glibc.
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 32 << 20)
    libc.mallopt(trim_threshold, (1 << 31) - 1)
    libc.mallopt(top_pad, 64 << 20)


@contextlib.contextmanager
def _without(module):
  """Has imports of a module (dotted name) fail, unless it is there already.

  TensorFlow imports Keras and goes on if it cannot. That is 0.3 of the time of
  its import, and of use for models of Keras alone, which import it themselves.
  """
  if module in sys.modules:
    yield
    return
  sys.modules[module] = None
  try:
    yield
  finally:
    del sys.modules[module]


def _import_quietly():
  """Imports TensorFlow while stderr's descriptor points to nowhere.

  A few lines about oneDNN and CUDA are printed before any log level counts.
  """
  kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    with _without('keras.src'):
      import tensorflow.compat.v1 as tf  # noqa: PLC0415
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)
  tf.logging.set_verbosity(tf.logging.FATAL)
  # Only eager mode goes: resource variables stay, so that a read has a moment.
  tf.disable_eager_execution()


@contextlib.contextmanager
def eagerly():
  """Ops run as they are called, as TensorFlow 2 has it, not in a graph."""
  # There is no public way once disable_eager_execution was called.
  from tensorflow.python.eager import context  # noqa: PLC0415

  with context.eager_mode():
    yield


def _take_eager_tensors_as_constants():
  """Has a graph take a tensor that was made eagerly as a constant.

  A function of TensorFlow 2 takes it as well; a classic graph refuses it.
  """
  import tensorflow.compat.v1 as tf  # noqa: PLC0415
  from tensorflow.python.framework import ops  # noqa: PLC0415

  take = ops._EagerTensorBase.__tf_tensor__

  def take_in_graph(tensor, dtype=None, name=None):
    if tf.executing_eagerly() or tf.get_default_graph().building_function:
      return take(tensor, dtype, name)
    return tensor._capture_as_const(name).__tf_tensor__(dtype, name)

  ops._EagerTensorBase.__tf_tensor__ = take_in_graph


_keep_freed_memory()
_import_quietly()
_take_eager_tensors_as_constants()
request_ids.draw_from_one_generator()
