"""slice_reader: variables as they are stored, by their slices or whole."""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.logdir import slice_reader


def test_each_slice_is_read_as_it_was_saved(tmp_path):
  rng = np.random.default_rng(0)
  table = rng.normal(size=[700, 3]).astype('f')
  many = {f'some/long/name_{i}': np.float32(i) for i in range(40)}
  with tf.Graph().as_default(), tf.Session() as session:
    cut = tf.fixed_size_partitioner(5)
    for name in 'a/table', 'table':
      tf.get_variable(name, table.shape, partitioner=cut)
    tf.get_variable('whole', initializer=table)
    for name, value in many.items():
      tf.get_variable(name, initializer=value)
    session.run(tf.global_variables_initializer())
    for variable in tf.global_variables():
      if place := variable._get_save_slice_info():
        [first, _], [rows, _] = place.var_offset, place.var_shape
        variable.load(table[first : first + rows], session)
    path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))

  def check(reader):
    assert reader.shapes.keys() == {*many, 'a/table', 'table', 'whole'}
    for name in 'a/table', 'table':
      slices = reader.find_slices(name)
      assert [(x.first, x.size) for x in slices] == [
        (140 * i, 140) for i in range(5)
      ]
      read = [reader.read(name, x) for x in slices]
      np.testing.assert_array_equal(np.concatenate(read), table)
    [whole] = reader.find_slices('whole')
    assert (whole.first, whole.size) == (0, 700)
    np.testing.assert_array_equal(reader.read('whole', whole), table)
    for name, value in many.items():
      [part] = reader.find_slices(name)
      assert reader.read(name, part) == value

  slice_reader.read(path, check)
