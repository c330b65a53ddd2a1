"""TensorFlow as the runtime of classic graphs: imported once and quietly.

A program imports this module before any other that imports TensorFlow, which
reads the settings below on import or when the first server starts. The import
is quiet by common/quiet_import.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

# Without this, Session.close() waits forever for a dead ps.
os.environ.setdefault('GRPC_FAIL_FAST', 'true')
# Have gRPC resolve names as we do, with the system's resolver: its own knows
# neither nsswitch.conf nor mDNS, so a host could answer us but not TensorFlow.
os.environ.setdefault('GRPC_DNS_RESOLVER', 'native')
# A ps that comes back is found within a third of a second. Without gRPC's
# optional features, such as retries, a step takes 2 % less processor time.
os.environ.setdefault(
  'TF_GRPC_DEFAULT_OPTIONS',
  'grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=300,'
  'grpc.minimal_stack=1',
)
# gRPC would send the traffic of the cluster through an HTTP proxy. What else in
# this process uses one, such as a problem that streams its data, keeps it;
# gRPC's own variable for this, no_grpc_proxy, has no word for all hosts.
_NO_PROXY = 'grpc.enable_http_proxy'
if _NO_PROXY not in os.environ['TF_GRPC_DEFAULT_OPTIONS']:
  os.environ['TF_GRPC_DEFAULT_OPTIONS'] += f',{_NO_PROXY}=0'
# By default each process takes all memory of a GPU, whoever else is on it.
os.environ.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')


def hide_gpus() -> None:
  """Keeps this process off all GPUs, before it makes its first device.

  A config's device_count is not enough: building a tf.cond starts TensorFlow's
  eager runtime, whose own device takes half a gigabyte of each GPU.
  """
  os.environ['CUDA_VISIBLE_DEVICES'] = ''


def _keep_freed_memory() -> None:
  """Lets glibc keep the memory of a step's tensors for the next step.

  By default it returns large blocks to the kernel and gets them back page by
  page, which takes 14 % of the processor time of a step of the cnn.
  """
  mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # From malloc.h.
  with contextlib.suppress(OSError, AttributeError):  # Not glibc.
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 32 << 20)
    libc.mallopt(trim_threshold, (1 << 31) - 1)
    libc.mallopt(top_pad, 64 << 20)


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
  """Makes imports of a module (dotted name) fail, unless it is loaded already.

  TensorFlow imports Keras and goes on if it cannot. Keras takes 0.3 of the time
  of that import and only serves Keras models, which import it themselves.
  """
  if module in sys.modules:
    yield
    return
  # What Python takes for a module that must not be imported.
  sys.modules[module] = None  # type: ignore[assignment]  # typeshed has no None
  try:
    yield
  finally:
    del sys.modules[module]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Collects no garbage meanwhile, and then again if it was collected before.

  Not in two threads at once: one would see the other's switch as the user's.
  """
  is_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if is_enabled:
      gc.enable()


def _import_in_graph_mode() -> None:
  # It makes half a million objects that stay: 600 looks for garbage among them
  # would take a tenth of its time.
  with _without('keras.src'), uncollected():
    import tensorflow.compat.v1 as tf  # noqa: PLC0415
  tf.logging.set_verbosity(tf.logging.FATAL)
  # Only eager mode goes: with resource variables a read has a definite time.
  tf.disable_eager_execution()


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
  """Runs ops as they are called, as in TensorFlow 2, not in a graph."""
  try:
    with tf_internals.eager_mode():
      yield
  finally:
    restore_behavior()


def restore_behavior() -> None:
  """Undoes what users' code has switched for the whole process.

  The first lines of many a TensorFlow 1 script are tf.disable_v2_behavior(),
  after which variables are no resources: a read has no definite time. Shapes
  and `==` stay as that script expects them.
  """
  import tensorflow.compat.v1 as tf  # noqa: PLC0415

  if tf.executing_eagerly():
    return  # Within another `eagerly`, which does it at its end.
  tf.disable_eager_execution()
  tf.enable_resource_variables()
  tf.enable_control_flow_v2()


_keep_freed_memory()
_import_in_graph_mode()
# It imports TensorFlow, so only now.
from distmnist import tf_internals  # noqa: E402

tf_internals.take_eager_tensors_as_constants()
tf_internals.draw_request_ids_from_one_generator()
