"""parquet: rows by their numbers, and what no array can be made of."""

import datetime
import decimal
import errno
import os

import numpy as np
import pytest

from distmnist.readers import parquet

pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed')


def write(path, table, rows=4):
  from pyarrow import parquet as pq  # noqa: PLC0415  Where there is pyarrow.

  pq.write_table(pa.table(table), path, row_group_size=rows)
  return str(path)


def make_table(numbers):
  return {
    'n': pa.array(numbers, pa.int32()),
    'v': [[float(n), n + 0.5] for n in numbers],
    't': [f'text {n}' for n in numbers],
  }


def test_each_row_is_read_by_its_number(tmp_path):
  write(tmp_path / 'a-0', make_table(range(10)))
  write(tmp_path / 'a-1', make_table(range(10, 13)))
  reader = parquet.Reader(
    f'{tmp_path}/a-*', x={'v': 'v', 't': 't'}, y='n', window=2
  )
  assert reader.num_examples == 13
  assert reader.block_sizes.tolist() == [4, 4, 2, 3]
  x, y = reader.read(np.array([12, 0, 9, 4, 5]))
  assert y.dtype == np.int32 and y.tolist() == [12, 0, 9, 4, 5]
  assert x['v'].tolist()[:2] == [[12, 12.5], [0, 0.5]]
  assert x['t'].tolist()[0] == b'text 12'


def test_a_row_group_is_decoded_in_parts(tmp_path, monkeypatch):
  monkeypatch.setattr(parquet, '_PART_BYTES', 100)
  path = write(tmp_path / 'a', make_table(range(50)), rows=20)
  reader = parquet.Reader(path, x={'v': 'v', 't': 't'}, y='n')
  assert reader.block_sizes.tolist() == [20, 20, 10]
  x, y = reader.read(np.array([49, 0, 20]))
  assert y.tolist() == [49, 0, 20]
  assert x['v'].tolist() == [[49, 49.5], [0, 0.5], [20, 20.5]]
  assert x['t'].tolist()[0] == b'text 49'


@pytest.mark.parametrize(
  'table, message',
  [
    (
      {'n': [1, None], 'v': [1, 2]},
      'row group 0: n has 1 rows without a value',
    ),
    (
      {'n': [1, 2], 'v': [[1], [1, 2]]},
      'row group 0: v has lists of 1 to 2 values: expected all of one length',
    ),
    (
      {'n': [1, 2], 'v': pa.array([[], []], pa.list_(pa.int64()))},
      'a, row group 0: v has lists of 0 values',
    ),
    ({'m': [1], 'v': [1]}, "has no column 'n': it has m, v"),
  ],
)
def test_what_no_array_can_be_made_of_is_named(tmp_path, table, message):
  path = write(tmp_path / 'a', table)
  with pytest.raises(ValueError, match=message):
    parquet.Reader(path, x='v', y='n').read(np.array([0]))


def test_another_file_is_none(tmp_path):
  (tmp_path / 'a').write_text('some text that is long enough to be a table')
  with pytest.raises(ValueError, match='a is not a Parquet file'):
    parquet.Reader(str(tmp_path / 'a'), x='v', y='n')


def test_categories_of_pandas_are_text(tmp_path):
  jobs = pa.array(['cook', 'smith', 'cook']).dictionary_encode()
  path = write(tmp_path / 'a', {'n': [0, 1, 2], 'job': jobs})
  x, _ = parquet.Reader(path, x='job', y='n').read(np.array([2, 1]))
  assert x.tolist() == [b'cook', b'smith']


@pytest.mark.parametrize(
  'column, kind',
  [
    (pa.array([1.5]), 'double'),
    (pa.array([300], pa.int32()), 'int32'),
    (pa.array(['3']), 'text'),
    (pa.array([[3]]), 'a list of int64'),
  ],
)
def test_files_have_the_same_types(tmp_path, column, kind):
  """NumPy would make 1 of 1.5, and 44 of 300."""
  first = write(tmp_path / 'a-0', {'n': [3], 'v': pa.array([1], pa.int8())})
  second = write(tmp_path / 'a-1', {'n': [3], 'v': column})
  with pytest.raises(ValueError, match='a-1: v is ') as raised:
    parquet.Reader(f'{tmp_path}/a-*', x='v', y='n')
  assert str(raised.value) == f'{second}: v is {kind}, but int8 in {first}'


def test_text_may_be_written_in_several_ways(tmp_path):
  texts = pa.array(['a'])
  for i, t in enumerate(
    [texts, texts.cast(pa.large_string()), texts.dictionary_encode()]
  ):
    write(tmp_path / f'a-{i}', {'n': [i], 't': t})
  reader = parquet.Reader(f'{tmp_path}/a-*', x='t', y='n')
  x, _ = reader.read(np.arange(3))
  assert x.tolist() == [b'a'] * 3


def test_lists_have_one_length_in_all_row_groups(tmp_path):
  """NumPy would repeat the value of a list that has only one."""
  path = write(tmp_path / 'a', {'n': [1, 2], 'v': [[1, 2], [3]]}, rows=1)
  reader = parquet.Reader(path, x='v', y='n')
  with pytest.raises(
    ValueError, match='row group 1: v has lists of 1 values, another .* of 2'
  ):
    reader.read(np.arange(2))


@pytest.mark.parametrize('length', [-1, 2])
def test_a_list_without_one_of_its_values_is_named(tmp_path, length):
  kind = pa.list_(pa.int64(), length)
  lists = pa.array([[1, 2], [3, 4], [5, None], [7, 8]], kind)
  path = write(tmp_path / 'a', {'v': lists, 'n': range(4)}, rows=2)
  reader = parquet.Reader(path, 'v', 'n')
  with pytest.raises(ValueError, match='group 1: v has lists in which a value'):
    reader.read(np.arange(4))


@pytest.mark.parametrize(
  'column, kind',
  [
    (pa.array([decimal.Decimal('1.5')]), r'decimal128\(2, 1\)'),
    (pa.array([datetime.datetime(2020, 1, 1)]), r'timestamp\[us\]'),
    (pa.array([{'a': 'b'}]), 'struct<a: string>'),
    (pa.array([[[1]]]), 'a list of a list of int64'),
    (
      pa.array([[('a', 'b')]], pa.map_(pa.string(), pa.string())),
      'map<string, string',
    ),
  ],
)
def test_a_type_that_no_graph_has_is_named(tmp_path, column, kind):
  path = write(tmp_path / 'a', {'n': [0], 'v': column})
  with pytest.raises(ValueError, match=f'{path}: v is {kind}.*: expected num'):
    parquet.Reader(path, x='v', y='n')
  parquet.Reader(path, x='n', y='n')


def test_a_file_without_rows_has_no_types(tmp_path):
  write(tmp_path / 'a-0', {'n': pa.nulls(0), 'v': pa.nulls(0)})
  write(tmp_path / 'a-1', {'n': [1], 'v': [0.5]})
  x, _ = parquet.Reader(f'{tmp_path}/a-*', x='v', y='n').read(np.arange(1))
  assert x.tolist() == [0.5]


def test_a_row_group_that_is_damaged_is_named(tmp_path):
  path = tmp_path / 'a'
  write(path, {'n': [1, 2], 'v': [0.5, 1.5]})
  whole = path.read_bytes()
  path.write_bytes(whole[:4] + bytes([255] * 60) + whole[64:])
  reader = parquet.Reader(path, x='v', y='n')
  with pytest.raises(ValueError, match=f'^{path}, row group 0, is damaged'):
    reader.read(np.arange(2))


def test_a_disk_that_fails_has_not_damaged_the_row_group(tmp_path, monkeypatch):
  path = write(tmp_path / 'a', {'n': [1, 2], 'v': [0.5, 1.5]})
  reader = parquet.Reader(path, x='v', y='n')

  def fail(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  monkeypatch.setattr('pyarrow.parquet.ParquetFile.iter_batches', fail)
  with pytest.raises(OSError, match=path) as caught:
    reader.read(np.arange(2))
  assert caught.value.errno == errno.EIO


def test_a_file_that_is_not_what_it_was_is_named(tmp_path):
  path = write(tmp_path / 'a', {'n': [1, 2], 'v': [0.5, 1.5]})
  reader = parquet.Reader(path, x='v', y='n')
  os.replace(write(tmp_path / 'b', {'n': [3, 4], 'v': [0.5, 1.5]}), path)
  with pytest.raises(ValueError, match=f'^{path} has changed since the traini'):
    reader.read(np.arange(2))


@pytest.mark.parametrize('value', [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none_is_named(tmp_path, value):
  path = write(tmp_path / 'a', {'n': [1] * 8, 'w': [0.0] * 6 + [value, 2.0]})
  assert len(parquet.Reader(path, x='n', y='w').read(np.arange(8))) == 2
  reader = parquet.Reader(path, x='n', y='n', w='w')
  with pytest.raises(ValueError, match='row group 1: w: 1 of 4'):
    reader.read(np.arange(1))
