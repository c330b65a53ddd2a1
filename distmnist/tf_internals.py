"""Every private part of TensorFlow and Keras that distmnist touches.

No other module does (tests/house/tf_internals_test.py). All were seen in
TensorFlow 2.21 and Keras 3; a new version may rename any of them without a
word, so each function here says what it is for, and has a test.

It stands at the bottom, beside `runtime`: the data, the cluster, the exchange
and the runtime itself need it, and no room is below all of them but `common`,
which does without TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import mmap
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import tensor_bundle_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

if TYPE_CHECKING:
  import keras

# An entry of a checkpoint's index, whose values are these protos: TensorFlow
# tells no program by which slices a variable was saved.
BundleEntry = tensor_bundle_pb2.BundleEntryProto


# Graphs.


def set_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
  """Gives an op of a graph that has not run another input of the same dtype.

  What is not yet known when an op is built is a placeholder until it is.
  """
  op._update_input(index, tensor)


def add_control_inputs(
  op: tf.Operation, others: Sequence[tf.Operation]
) -> None:
  """Makes an op of a graph that has not run wait for others.

  What it must wait for may be built later than it is.
  """
  op._add_control_inputs(others)


def set_attr(op: tf.Operation, name: str, value: tf.AttrValue) -> None:
  """Changes an attribute of an op, for the sessions that are yet to be made."""
  op._set_attr(name, value)


def set_device(op: tf.Operation, device: str) -> None:
  """Places an op elsewhere, for the sessions that are yet to be made."""
  op._set_device(device)


def keep_loop_whole(op: tf.Operation) -> None:
  """Makes a loop, a While, run as one op.

  Else TensorFlow splits it into Enter, Merge and Switch.
  """
  op._set_attr('_lower_using_switch_merge', tf.AttrValue(b=False))


def drop_colocation(node: tf.NodeDef) -> None:
  """Lets an op be imported without those it is colocated with."""
  node.attr.pop('_class', None)


@contextlib.contextmanager
def growing(graph: tf.Graph) -> Iterator[None]:
  """Lets a final graph grow, within a `with`: its sessions grow with it.

  What runs in a session meanwhile, in another thread, waits: the session would
  take new ops before their control inputs are there.
  """
  with graph._mutation_lock():
    graph._unsafe_unfinalize()
    try:
      yield
    finally:
      graph.finalize()


def find_forward(op: tf.Operation) -> tf.Operation | None:
  """Returns the op whose gradient `op` is a part of."""
  return op._original_op


def batch_one_by_one() -> contextlib.AbstractContextManager:
  """Within it, a tf.raw_ops.BatchFunction runs its function call by call.

  In threads that all such ops of a task share. The plain scheduler has one per
  op, which wakes up every millisecond and outlives the op. The Python function
  of BatchFunction does not take these attributes.
  """
  one = tf.AttrValue(i=1)
  return tf.get_default_graph()._attr_scope(
    {
      '_enable_adaptive_scheduler': tf.AttrValue(b=True),
      '_min_inflight_batches': one,
      '_initial_inflight_batches': one,
      '_max_inflight_batches': one,
    }
  )


# Variables.


def get_slice(variable: tf.Variable) -> tf.Variable.SaveSliceInfo | None:
  """Returns what a variable is of a larger one.

  It has full_name, full_shape, var_offset and var_shape.
  """
  return variable._get_save_slice_info()


def set_slice(
  variable: tf.Variable,
  full_name: str,
  full_shape: Sequence[int],
  var_offset: Sequence[int],
  var_shape: Sequence[int],
) -> None:
  """Has a variable saved as the slice of a larger one, as a shard is.

  Args:
    variable: the slice.
    full_name, full_shape: of the larger one.
    var_offset: where the slice begins in it.
    var_shape: the slice's.
  """
  variable._set_save_slice_info(
    tf.Variable.SaveSliceInfo(full_name, full_shape, var_offset, var_shape)
  )


# Sessions.

# In whose frame a thread is that waits for a session.run.
SESSION_FILE = inspect.getfile(tf.Session)
# In whose frame a thread is that runs a Python function of a graph.
PY_FUNC_FILE = inspect.getfile(inspect.unwrap(tf.py_func))


def get_config(session: tf.Session) -> tf.ConfigProto:
  """Returns the config of a session, to make another one like it."""
  return session._config


def is_closed(session: tf.Session) -> bool:
  """Whether a session has been closed by this process."""
  return session._closed


def get_last_step(hook: tf.train.StopAtStepHook) -> int | None:
  """Returns the step that a hook was told to end at; None if it counts."""
  return None if hook._num_steps is not None else hook._last_step


def bind_run(
  session: tf.Session, fetched: Sequence[tf.Tensor], fed: Sequence[tf.Tensor]
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
  """Returns a function that runs always the same tensors of a final graph.

  It spares what tf.Session.run works out anew in each call.
  tf.Session.make_callable does, too, but takes no feeds.

  Returns:
    A function of the values of `fed`, in its dtypes, that gives those of
    `fetched`. It raises what session.run does.
  """
  outputs = [tensor._as_tf_output() for tensor in fetched]
  inputs = [tensor._as_tf_output() for tensor in fed]

  def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    # As the session itself does, which also explains errors.
    return session._do_call(
      session._call_tf_sessionrun,
      *(None, dict(zip(inputs, values, strict=True)), outputs, [], None),
    )

  return run


# Eager mode.


def eager_mode() -> contextlib.AbstractContextManager:
  """Runs ops as they are called, within a `with`.

  No public API does this once tf.disable_eager_execution has been called.
  """
  return context.eager_mode()


def take_eager_tensors_as_constants() -> None:
  """Makes a graph accept an eagerly created tensor as a constant.

  A TensorFlow 2 function accepts it anyway; a classic graph refuses it.
  """
  take = ops._EagerTensorBase.__tf_tensor__

  def take_in_graph(
    tensor: tf.Tensor, dtype: tf.DType | None = None, name: str | None = None
  ) -> tf.Tensor:
    if tf.executing_eagerly() or tf.get_default_graph().building_function:
      return take(tensor, dtype, name)
    return tensor._capture_as_const(name).__tf_tensor__(dtype, name)

  setattr(ops._EagerTensorBase, '__tf_tensor__', take_in_graph)  # noqa: B010


# Keras.


def list_layers(model: keras.Model) -> list[keras.Layer]:
  """Returns all layers of a model, those within layers, too."""
  return list(model._flatten_layers())


def get_mask(output: tf.Tensor) -> tf.Tensor | None:
  """Returns the mask that Keras has put on a model's output."""
  return getattr(output, '_keras_mask', None)


def is_built(metric: keras.metrics.Metric) -> bool:
  """Whether a metric has made its variables."""
  return getattr(metric, '_built', True)


def get_compile_arguments(model: keras.Model) -> dict[str, object]:
  """Returns what a model was compiled with, {} if it was not.

  As it was given: Keras's public functions return it serialized, without the
  user's own functions.
  """
  config = getattr(model, '_compile_config', None)
  return config.config if config else {}


def has_undecayed(optimizer: keras.optimizers.Optimizer) -> bool:
  """Whether a Keras optimizer leaves some variables out of its decay."""
  return hasattr(optimizer, '_exclude_from_weight_decay')


def restart_keras() -> None:
  """Makes Keras forget what it keeps between models.

  The numbers in names of layers start over. Keras's public function for it also
  resets the default graph, in which we may be, and takes a second to collect
  garbage.
  """
  # Only for Keras models.
  from keras.src.backend.common import global_state  # noqa: PLC0415

  global_state.GLOBAL_STATE_TRACKER = threading.local()


# Request ids.

_LIBRARY = 'libtensorflow_framework.so.2'
# tsl::random::ThreadLocalNew64() and tsl::random::New64().
_THREAD_LOCAL = '_ZN3tsl6random16ThreadLocalNew64Ev'
_SHARED = '_ZN3tsl6random5New64Ev'


def draw_request_ids_from_one_generator() -> bool:
  """Makes ThreadLocalNew64 of this process jump to New64.

  A server refuses a request whose id is among its last 100,000 (tensorflow/
  core/distributed_runtime/recent_request_ids.cc). TensorFlow 2.21 draws an id
  by tsl::random::ThreadLocalNew64, from a per-thread generator with a 32-bit
  seed, and makes each session.run in a new thread (SchedClosure in tsl's
  env.cc). So an id is one of 2**32, and one in 2**32 / 100,000 = 43,000 of the
  session.runs that reach a ps, from any worker, fails with "The same RunGraph
  (Worker) request was received twice". The same has been seen elsewhere:
  github.com/pytorch/xla/issues/4084. tsl::random::New64, in the same library,
  has one generator for all threads.

  Measured with four threads that only read a variable on a ps: 13 refusals in
  474,000 reads, and none in 487,000 with ids of 64 bits.

  A step that is refused cannot just be run again: the parts of it on other
  tasks may have run. Of 15 such steps of a worker with two ps all had taken
  their batch, and 5 had updated some of the variables.

  Call it once TensorFlow is imported and before there is a server. Does nothing
  if the processor is not x86-64, the functions are gone, or the system forbids
  programs to change themselves; then workers recover as if a ps had been lost.

  Returns:
    Whether it was done.
  """
  if platform.machine() not in ('x86_64', 'AMD64'):
    return False
  with contextlib.suppress(OSError, AttributeError):
    library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    old, new = (_find(library, name) for name in (_THREAD_LOCAL, _SHARED))
    _write_code(old, make_jump(old, new))
    return True
  return False


def make_jump(start: int, end: int) -> bytes:
  """Returns an x86-64 instruction: jump from start to end.

  Args:
    start: the address of the instruction.
    end: an address at most 2 GiB away.
  """
  num_bytes = 5
  distance = end - (start + num_bytes)
  return b'\xe9' + distance.to_bytes(num_bytes - 1, 'little', signed=True)


def _find(library: ctypes.CDLL, name: str) -> int:
  address = ctypes.cast(library[name], ctypes.c_void_p).value
  if address is None:  # Not from a library that is loaded.
    raise AttributeError(name)
  return address


def _write_code(address: int, code: bytes) -> None:
  """Writes code; it fits in its page, as a function starts at n * 16."""
  page = address - address % mmap.PAGESIZE
  may_run = mmap.PROT_READ | mmap.PROT_EXEC
  _protect(page, may_run | mmap.PROT_WRITE)
  ctypes.memmove(address, code, len(code))
  _protect(page, may_run)


def _protect(page: int, rights: int) -> None:
  mprotect = ctypes.CDLL(None, use_errno=True).mprotect
  mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
  if mprotect(page, mmap.PAGESIZE, rights):
    raise OSError(ctypes.get_errno(), 'mprotect')
