"""fitted: what fit has written is read as it was."""

import numpy as np
import pytest

from distmnist.problems import fitted

A, B = np.arange(6).reshape(3, 2), np.array(['x', 'yy', ''])


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--fitted_dir={tmp_path}')
  return str(tmp_path)


@pytest.mark.parametrize(
  'x', [A, {'a': A, 'b': B}, (A, B)], ids=['array', 'dict', 'tuple']
)
def test_nests_are_what_they_were(folder, x):
  fitted.write(folder, {'train': (x, B)})
  found, y = fitted.load('train')
  np.testing.assert_equal(found, x)
  assert type(found) in (type(x), np.memmap) and y.tolist() == B.tolist()


def test_a_list_is_a_tuple(folder):
  fitted.write(folder, {'train': ([A, A], B)})
  assert isinstance(fitted.load('train')[0], tuple)


def test_the_test_split_is_that_of_the_validation_if_there_is_one(folder):
  fitted.write(folder, {'train': (A, B)})
  assert fitted.load('validation') is None
  assert fitted.load('test')[1].tolist() == B.tolist()
  fitted.write(folder, {'train': (A, B), 'validation': (A[:1], B[:1])})
  assert len(fitted.load('validation')[0]) == len(fitted.load('test')[0]) == 1
