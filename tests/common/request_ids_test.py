"""request_ids: the ids that servers of TensorFlow draw."""

import ctypes
import platform

import pytest

from distmnist.common import request_ids

pytestmark = pytest.mark.skipif(
  platform.machine() not in ('x86_64', 'AMD64'), reason='changes x86-64 alone'
)


@pytest.mark.parametrize(
  'start, end, jump',
  [
    (0x1000, 0x1005, b'\xe9\0\0\0\0'),
    (0x1000, 0x1234, b'\xe9\x2f\x02\0\0'),
    (0x1250, 0x1000, b'\xe9\xab\xfd\xff\xff'),
  ],
)
def test_a_jump_counts_from_the_next_instruction(start, end, jump):
  assert request_ids.make_jump(start, end) == jump


def test_a_jump_of_more_than_two_gigabytes_is_refused():
  with pytest.raises(OverflowError):
    request_ids.make_jump(0, 2**32)


def test_this_tensorflow_has_what_is_changed():
  assert request_ids.draw_from_one_generator()
  library = ctypes.CDLL('libtensorflow_framework.so.2')
  start, end = (
    ctypes.cast(library[name], ctypes.c_void_p).value
    for name in (request_ids._THREAD_LOCAL, request_ids._SHARED)
  )
  jump = request_ids.make_jump(start, end)
  assert ctypes.string_at(start, len(jump)) == jump


@pytest.mark.slow
def test_threads_that_draw_one_id_each_draw_no_id_twice():
  library = ctypes.CDLL('libtensorflow_framework.so.2')
  draw = library[request_ids._THREAD_LOCAL]
  libc = ctypes.PyDLL(None)
  threads = (ctypes.c_ulong * 4)()
  # What a thread returns is as wide as an id.
  ids = (ctypes.c_uint64 * 250_000)()
  # Of an unchanged TensorFlow one such set in a thousand has no id twice.
  for start in range(0, len(ids), len(threads)):
    for i in range(len(threads)):
      where = ctypes.byref(threads, i * ctypes.sizeof(ctypes.c_ulong))
      assert not libc.pthread_create(where, None, draw, None)
    for i, thread in enumerate(threads, start):
      where = ctypes.byref(ids, i * ctypes.sizeof(ctypes.c_uint64))
      assert not libc.pthread_join(ctypes.c_ulong(thread), where)
  assert len(set(ids)) == len(ids)
