"""A run in an object store: begun, resumed, refused, and what it leaves."""

import pytest

SMALL = (
  *('--dataset=synthetic', '--validation_images=500', '--batch_size=50'),
  *('--model=softmax',),
)


@pytest.fixture
def logdir(store, tmp_path):
  return f'{store.url}/{tmp_path.name}'
