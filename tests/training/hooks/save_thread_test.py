"""save_thread: one save beside the steps, whose errors are the caller's."""

import threading

import pytest

from distmnist.training.hooks import save_thread


def test_it_goes_on_beside_the_caller_and_ends_when_it_is_done():
  thread, may_end, done = save_thread.SaveThread(), threading.Event(), []
  assert not thread.is_begun and not thread.is_running

  def save():
    assert may_end.wait(60)
    done.append(threading.current_thread())

  thread.begin(save)
  assert thread.is_begun and thread.is_running and not done
  may_end.set()
  thread.finish()
  assert not thread.is_begun and not thread.is_running
  assert done != [threading.current_thread()]


def test_what_it_raises_is_raised_once_where_its_end_is_told():
  thread = save_thread.SaveThread()

  def fail():
    raise ValueError('no room')

  thread.begin(fail)
  with pytest.raises(ValueError, match='no room'):
    thread.finish()
  thread.begin(lambda: None)
  thread.finish()
