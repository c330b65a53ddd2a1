"""fitted: which split of what fit has written is which."""

import numpy as np
import pytest

from distmnist.data import array_folder
from distmnist.problems import fitted

A, B = np.arange(6).reshape(3, 2), np.array(['x', 'yy', ''])


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--fitted_dir={tmp_path}')
  return str(tmp_path)


def test_the_test_split_is_that_of_the_validation_if_there_is_one(folder):
  array_folder.write(folder, {'train': (A, B)})
  assert fitted.load('validation') is None
  assert fitted.load('test')[1].tolist() == B.tolist()
  array_folder.write(folder, {'train': (A, B), 'validation': (A[:1], B[:1])})
  assert len(fitted.load('validation')[0]) == len(fitted.load('test')[0]) == 1
