"""columns: which parts of a table are x and y."""

import numpy as np
import pytest

from distmnist.readers import columns

TABLE = {
  'a': np.array([1, 2]),
  'b': np.array([3, 4]),
  'c': np.array(['x', 'y']),
}


def test_a_nest_of_names_is_one_of_arrays():
  nest = {'side': ['b', 'a'], 'pair': ('c', 'a')}
  assert columns.names(nest) == ['c', 'a', 'b']
  found = columns.select(nest, TABLE)
  assert found['side'].tolist() == [[3, 1], [4, 2]]
  assert [part.tolist() for part in found['pair']] == [['x', 'y'], [1, 2]]


def test_a_column_that_there_is_not_is_named():
  with pytest.raises(ValueError, match="^t.csv has no column 'd': it has a"):
    columns.check(['a', 'd'], ['a', 'b'], 't.csv')


def test_a_name_that_two_columns_have_is_refused():
  columns.check('b', ['a', 'b', 'a'], 't.csv')
  with pytest.raises(ValueError, match="^t.csv has 2 columns 'a': expected o"):
    columns.check({'x': ['b', 'a']}, ['a', 'b', 'a'], 't.csv')


def test_columns_side_by_side_are_all_numbers_or_all_text():
  table = TABLE | {'c': np.array([b'x', b'NA'], object)}
  assert columns.select(['c', 'c'], table).shape == (2, 2)
  with pytest.raises(
    ValueError, match='^c of the columns a, c is text, or has'
  ):
    columns.select(['a', 'c'], table)


def test_an_id_beside_a_float_is_not_rounded():
  table = {'price': np.array([0.5], np.float32), 'id': np.array([1 << 24])}
  assert columns.select(['id', 'price'], table).tolist() == [[1 << 24, 0.5]]
  table['id'] += 1
  assert columns.select({'id': 'id'}, table)['id'].tolist() == [(1 << 24) + 1]
  with pytest.raises(ValueError, match='^id of .* up to 16,777,217'):
    columns.select(['id', 'price'], table)


def test_lists_do_not_go_beside_numbers():
  table = {'a': np.zeros(3), 'v': np.zeros([3, 2])}
  assert columns.select(['v', 'v'], table).shape == (3, 2, 2)
  with pytest.raises(ValueError, match='^the columns a, v do not go side by'):
    columns.select(['a', 'v'], table)
