"""A new center has no touched rows; without the hook it has no marks at all."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.exchange import strategy
from distmnist.exchange.tables import touched_hook, touched_rows


def test_a_new_center_has_marks_and_none_is_set(
  tf_session, set_flags, monkeypatch
):
  set_flags('--save_tables=touched')
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 10)
  rows = tf.get_variable('rows', [5, 1])
  touched_rows.add([rows])
  [touched] = touched_rows.get_all()
  found = touched.build_find(tf.constant(0, tf.int64), tf.constant(5, tf.int64))
  mark = touched.mark(tf.constant([3], tf.int64))
  hook = touched_hook.TouchedHook()
  assert isinstance(hook, strategy.CenterHook)
  with pytest.raises(tf.errors.OpError):
    tf_session.run(mark)
  for _ in range(2):
    hook.on_new_center(tf_session)
    marked, cleared_by = tf_session.run(found)
    assert (marked.tolist(), cleared_by) == ([], touched_rows.NO_CHIEF)
    tf_session.run(mark)
    assert tf_session.run(found)[0].tolist() == [3]


def test_without_marks_there_is_nothing_to_clear(tf_session):
  touched_hook.TouchedHook().on_new_center(tf_session)
