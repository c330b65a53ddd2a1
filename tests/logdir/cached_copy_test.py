"""cached_copy: made once for a version, and removed when it is not needed."""

import os
import pathlib

import pytest

from distmnist.logdir import cached_copy


def test_it_is_made_once_until_the_version_changes():
  copy, made = cached_copy.CachedCopy(), []

  def write(path):
    made.append(path)
    pathlib.Path(path).write_text('it')

  first = copy.find((1, 'a'), 'name', write)
  assert copy.find((1, 'a'), 'name', write) == first
  assert os.path.basename(first) == 'name'
  second = copy.find((2, 'a'), 'name', write)
  assert made == [first, second]
  assert not os.path.exists(os.path.dirname(first))
  copy.drop()
  assert not os.path.exists(os.path.dirname(second))
  copy.drop()


def test_what_fails_leaves_nothing_and_is_tried_again():
  copy, folders = cached_copy.CachedCopy(), []

  def fail(path):
    folders.append(os.path.dirname(path))
    raise ValueError

  for _ in range(2):
    with pytest.raises(ValueError):
      copy.find(1, 'name', fail)
  assert len(folders) == 2
  assert not any(map(os.path.exists, folders))
