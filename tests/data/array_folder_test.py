"""array_folder: what one process has written another reads as it was."""

import numpy as np
import pytest

from distmnist.data import array_folder

A, B = np.arange(6).reshape(3, 2), np.array(['x', 'yy', ''])


@pytest.mark.parametrize(
  'x', [A, {'a': A, 'b': B}, (A, B)], ids=['array', 'dict', 'tuple']
)
def test_nests_are_what_they_were(tmp_path, x):
  array_folder.write(tmp_path, {'train': (x, B)})
  found, y = array_folder.load(tmp_path, 'train')
  np.testing.assert_equal(found, x)
  assert type(found) in (type(x), np.memmap) and y.tolist() == B.tolist()


def test_a_split_whose_dict_has_another_order_keeps_its_names(tmp_path):
  splits = {
    'train': ({'a': A, 'b': A + 6}, B),
    'validation': ({'b': A + 6, 'a': A}, B),
  }
  array_folder.write(tmp_path, splits)
  for split in splits:
    found, _ = array_folder.load(tmp_path, split)
    np.testing.assert_equal(found, {'a': A, 'b': A + 6})


@pytest.mark.parametrize('x', [A, (A, A), {'a': A, 'c': A}])
def test_splits_with_other_arrays_are_refused(tmp_path, x):
  splits = {'train': ({'a': A, 'b': A}, B), 'validation': (x, B)}
  with pytest.raises(
    ValueError, match=r"expected \['a', 'b'\], as in the train"
  ):
    array_folder.write(tmp_path, splits)


def test_a_list_is_a_tuple(tmp_path):
  array_folder.write(tmp_path, {'train': ([A, A], B)})
  assert isinstance(array_folder.load(tmp_path, 'train')[0], tuple)


def test_a_split_that_is_not_there_is_none(tmp_path):
  array_folder.write(tmp_path, {'train': (A, B)})
  assert array_folder.load(tmp_path, 'test') is None


def test_text_of_pandas_is_text_and_other_objects_are_refused(tmp_path):
  array_folder.write(tmp_path, {'train': (A, np.array(['x', 'yy'], object))})
  assert array_folder.load(tmp_path, 'train')[1].tolist() == ['x', 'yy']
  with pytest.raises(ValueError, match="has NoneType objects, such as 'None'"):
    array_folder.write(tmp_path, {'train': (A, np.array(['x', None]))})


def test_weights_are_a_split_s_own(tmp_path):
  w = np.float32([1, 2, 3])
  array_folder.write(tmp_path, {'train': (A, B, w), 'test': (A, B)})
  assert array_folder.load(tmp_path, 'train')[2].tolist() == w.tolist()
  assert len(array_folder.load(tmp_path, 'test')) == 2
