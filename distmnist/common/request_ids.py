"""Keeps the request ids of TensorFlow's servers from coming twice.

A server refuses a request whose id is among its last 100,000 (tensorflow/core/
distributed_runtime/recent_request_ids.cc). TensorFlow 2.21 draws an id by
tsl::random::ThreadLocalNew64, from a per-thread generator with a 32-bit seed,
and makes each session.run in a new thread (SchedClosure in tsl's env.cc). So an
id is one of 2**32, and one in 2**32 / 100,000 = 43,000 of the session.runs that
reach a ps, from any worker, fails with "The same RunGraph (Worker) request was
received twice", an AbortedError that costs a worker its session.
The same has been seen elsewhere: github.com/pytorch/xla/issues/4084.

tsl::random::New64, in the same library, has one generator for all threads.
"""

import contextlib
import ctypes
import mmap
import os
import platform

_LIBRARY = 'libtensorflow_framework.so.2'
# tsl::random::ThreadLocalNew64() and tsl::random::New64().
_THREAD_LOCAL = '_ZN3tsl6random16ThreadLocalNew64Ev'
_SHARED = '_ZN3tsl6random5New64Ev'


def draw_from_one_generator():
  """Makes ThreadLocalNew64 of this process jump to New64.

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


def make_jump(start, end):
  """Returns an x86-64 instruction, of type bytes: jump from start to end.

  Args:
    start: int, the address of the instruction.
    end: int, an address at most 2 GiB away.
  """
  num_bytes = 5
  distance = end - (start + num_bytes)
  return b'\xe9' + distance.to_bytes(num_bytes - 1, 'little', signed=True)


def _find(library, name):
  return ctypes.cast(library[name], ctypes.c_void_p).value


def _write_code(address, code):
  """Writes code; it fits in its page, as a function starts at n * 16."""
  page = address - address % mmap.PAGESIZE
  may_run = mmap.PROT_READ | mmap.PROT_EXEC
  _protect(page, may_run | mmap.PROT_WRITE)
  ctypes.memmove(address, code, len(code))
  _protect(page, may_run)


def _protect(page, rights):
  mprotect = ctypes.CDLL(None, use_errno=True).mprotect
  mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
  if mprotect(page, mmap.PAGESIZE, rights):
    raise OSError(ctypes.get_errno(), 'mprotect')
