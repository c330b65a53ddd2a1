"""request_ids: the ids that servers of TensorFlow draw."""

import ctypes
import platform
import threading

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


@pytest.mark.slow
def test_threads_that_draw_one_id_each_draw_no_id_twice():
  library = ctypes.CDLL('libtensorflow_framework.so.2')
  draw = library['_ZN3tsl6random16ThreadLocalNew64Ev']
  draw.restype = ctypes.c_uint64
  num_ids, ids = 250_000, []
  # As TensorFlow comes, one in a thousand such sets has no id twice.
  for _ in range(num_ids // 100):
    threads = [
      threading.Thread(target=lambda: ids.append(draw())) for _ in range(100)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  assert len(ids) == len(set(ids)) == num_ids
