"""Tables that do not fit into the memory of the ps are refused in one line."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, partial_names
from distmnist.nn import layers
from distmnist.strategies import async_sgd
from distmnist.training.problems import table_memory


def make(*ps_hosts):
  return cluster_lib.make_cluster(ps_hosts, ('w:1',), 'worker', 0)


def build(num_rows):
  for name, rows in (('small', 60), ('users', num_rows)):
    layers.embedding(tf.constant([1]), rows, 8, name)


@pytest.mark.slow
def test_tables_with_slots_are_held_against_the_flag(tf_session, set_flags):
  build(3 * 2**16)  # 6 MiB, and 12 of Adam on all ps.
  set_flags('--ps_memory_mib=10', '--optimizer=adam')
  table_memory.check(make('a:1', 'b:1'))
  with pytest.raises(cli.UsageError) as caught:
    table_memory.check(make('a:1'))
  assert str(caught.value).startswith(
    "the sparse tables, of which 'users' is the largest, take 18 MiB on each "
    'of 1 ps with --optimizer=adam, but the limit is 10 (--ps_memory_mib): take'
  )
  set_flags('--ps_memory_mib=10', '--optimizer=sgd')
  table_memory.check(make('a:1'))


@pytest.mark.slow
@pytest.mark.parametrize('is_made', [True, False])
def test_a_ps_has_no_more_rows_than_a_tensor(tf_session, set_flags, is_made):
  set_flags('--ps_memory_mib=1000000000')
  with tf.device('/job:ps/task:0'):
    strategy = async_sgd.AsyncSgd(make('a:1'))
    with strategy.scope():
      num_rows = layers.NewRows(2**31) if is_made else 2**31
      layers.embedding(tf.constant([1]), num_rows, 1, 'users')
  with pytest.raises(cli.UsageError) as caught:
    table_memory.check(make('a:1'))
  assert str(caught.value).startswith("the sparse table 'users' has 2,14")
  assert str(caught.value).endswith(
    'rows on a ps, with 1 ps; expected at most 2,147,483,647: take more ps or '
    'fewer rows'
  )
  with pytest.raises(cli.UsageError, match='rows in this process; expected'):
    table_memory.check(cluster_lib.Cluster())


@pytest.mark.slow
def test_ps_of_this_machine_share_its_memory(
  tf_session, set_flags, monkeypatch
):
  build(3 * 2**16)
  set_flags('--optimizer=sgd')
  monkeypatch.setattr(table_memory, 'read_memory', lambda: 5 * 2**20)
  with pytest.raises(cli.UsageError, match='on each of 2 ps'):
    table_memory.check(make('127.0.0.1:1', 'localhost:2'))
  table_memory.check(make('127.0.0.1:1', 'elsewhere:1'))
  with pytest.raises(cli.UsageError, match='take 6 MiB in this process with'):
    table_memory.check(cluster_lib.Cluster())


def test_memory_is_that_of_the_container(monkeypatch, tmp_path):
  whole = table_memory.read_memory()
  assert whole > 2**28
  limit = tmp_path / 'memory.max'
  monkeypatch.setattr(table_memory, '_LIMIT_FILE', limit)
  limit.write_text('1048576\n')
  assert table_memory.read_memory() == 2**20
  limit.write_text('max\n')
  assert table_memory.read_memory() >= whole


@pytest.mark.slow
def test_rows_that_are_made_count_with_their_keys(tf_session, set_flags):
  made = layers.NewRows(100_000)
  layers.embedding(tf.constant([1]), made, 8, 'users')
  # Rows and Adam's moments, a number in `keys`, and an entry of the map.
  needed = made.num_positions * (3 * 8 * 4 + 8 + 48)
  set_flags(f'--ps_memory_mib={needed // 2**20}', '--optimizer=adam')
  with pytest.raises(cli.UsageError, match=f'take {needed / 2**20:,.0f} MiB'):
    table_memory.check(make('a:1'))
  table_memory.check(make('a:1', 'b:1'))
  assert table_memory.describe_growth(2) == (
    'tables that grow (users): the memory of all rows is taken at the start; '
    f'their keys need up to {made.num_positions * 24:,} bytes more a ps'
  )


@pytest.mark.slow
def test_other_tables_do_not_grow(tf_session):
  build(60)
  assert table_memory.describe_growth(1) is None


@pytest.mark.slow
def test_marks_of_touched_rows_count_a_byte_each(
  tf_session, set_flags, monkeypatch
):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 2**20)
  set_flags('--save_tables=touched', '--optimizer=sgd', '--ps_memory_mib=32')
  rule = async_sgd.make(make('a:1'))
  with rule.scope():
    build(2**20)  # 32 MiB, and 1 MiB of marks; a table of one slice has none.
  with pytest.raises(cli.UsageError, match='take 33 MiB on each'):
    table_memory.check(make('a:1'))
