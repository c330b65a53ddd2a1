"""stored_table: a batch's rows of tables that stay in a checkpoint."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.logdir import checkpoint_reader
from distmnist.nn import layers
from distmnist.tables import (
  key_hash,
  key_map,
  new_rows,
  stored_table,
  table_saver,
)
from tests.support import tables

IDS = tables.IDS[0]
WIDTHS = 3, 2
# Of rows: few per slice, so that a batch needs several.
SLICE_BYTES = 200


def give_keys(session, wanted):
  """Gives rows to some keys of each table; the others share a row."""
  for keys, some in zip(key_map.get_all_keys(), wanted, strict=True):
    values = session.run(keys)
    in_bucket = len(values) // new_rows.NUM_BUCKETS
    some = np.unique(some)[::2]
    buckets = session.run(
      key_hash.find_buckets(tf.constant(some), new_rows.NUM_BUCKETS)
    )
    for bucket in np.unique(buckets):
      mine = some[buckets == bucket]
      first = bucket * in_bucket + new_rows.NUM_RESERVED
      values[first : first + len(mine)] = mine
    keys.load(values, session)


def save(folder, build, wanted=()):
  """Writes a checkpoint of random rows; returns (path, the outputs)."""
  with tf.Graph().as_default(), tf.Session() as session:
    outputs = build(tf.constant(IDS), WIDTHS)
    saver = table_saver.TableSaver('/cpu:0', SLICE_BYTES)
    session.run(tf.global_variables_initializer())
    rng = np.random.default_rng(1)
    for variable in tf.global_variables():
      if variable.dtype.base_dtype == tf.float32:
        variable.load(rng.normal(size=variable.shape), session)
    give_keys(session, wanted)
    path = str(folder / 'model.ckpt-1')
    saver.save(session, path)
    key_map.fill(session)
    return path, session.run(outputs)


def read(path, build):
  """Returns what the model computes with rows from the checkpoint."""
  with tf.Graph().as_default(), tf.Session() as session:
    stored = stored_table.StoredTables(most_bytes=0)
    with stored.scope():
      outputs = build(tf.constant(IDS), WIDTHS)
    variables = tf.global_variables()
    assert [v.op.name for v in variables] == ['w']
    tf.train.Saver(variables).restore(session, path)
    wanted = stored.ask(session)

    with checkpoint_reader.Reader(path) as reader:
      for name, spec in stored.specs.items():
        assert (reader.shapes[name], reader.dtypes[name]) == (
          spec.shape.as_list(),
          spec.dtype,
        )
      assert len(reader.find_slices('a/rows')) > 1
      rows = stored.read(reader, wanted)
    return session.run(outputs, rows)


@pytest.mark.slow
def test_rows_by_number_are_those_of_the_whole_table(tmp_path):
  path, expected = save(tmp_path, tables.build_outputs)
  np.testing.assert_array_equal(read(path, tables.build_outputs), expected)


@pytest.fixture(scope='module')
def saved_by_keys(tmp_path_factory):
  """(The path of a checkpoint of rows by keys, the outputs)."""
  with tf.Graph().as_default(), tf.Session() as session:
    texts = session.run(
      key_hash.find_fingerprints(tf.strings.as_string(IDS[:, 1:]))
    )
  wanted = (IDS - 50) * 2**45, texts
  folder = tmp_path_factory.mktemp('by_keys')
  return save(folder, tables.build_by_keys, wanted)


@pytest.mark.slow
def test_rows_by_key_are_those_of_the_whole_table(saved_by_keys):
  path, expected = saved_by_keys
  np.testing.assert_array_equal(read(path, tables.build_by_keys), expected)


@pytest.mark.slow
def test_keys_of_another_kind_are_refused(saved_by_keys):
  def build(ids, widths):
    del widths
    weight = tf.get_variable('w', [])
    rows = layers.NewRows(tables.NUM_ROWS)
    return weight * layers.embedding(tf.strings.as_string(ids), rows, 3, 'a')

  path, _ = saved_by_keys
  with pytest.raises(cli.RunError, match="'a' .* are whole numbers, but those"):
    read(path, build)


@pytest.mark.slow
def test_a_small_table_is_a_variable():
  stored = stored_table.StoredTables()
  with tf.Graph().as_default(), stored.scope():
    tables.build_outputs(tf.constant(IDS), WIDTHS)
    names = {v.op.name for v in tf.global_variables()}
  assert stored.specs == {} and names > {'a/rows', 'b/rows'}
