"""What goes with a feed, and what train is told of it."""

import pytest

from distmnist.common import cli
from distmnist.spark import feed as feed_lib


@pytest.mark.parametrize(
  ('test_data', 'flags', 'said'),
  [
    (None, [], 'the feed has no test_data: give some'),
    ([], ['--data_dir=/a'], '--data_dir does not go with a feed'),
    ([], ['--epochs_over=dataset'], '--epochs_over does not go with a feed'),
  ],
)
def test_what_does_not_go_together_is_refused(test_data, flags, said):
  with pytest.raises(cli.UsageError, match=said):
    feed_lib.Feed([], test_data).check(flags)


def test_a_function_needs_no_test_data():
  feed_lib.Feed([]).check([], needs_test_data=False)


def test_train_is_told_of_the_images():
  feed = feed_lib.Feed([], [], image_shape=(8, 8, 3), num_classes=7)
  flags = ['--dataset=npy', '--npy_image_shape=8,8,3', '--npy_classes=7']
  assert feed.make_flags([], True) == [
    '--epochs_over=dataset',
    '--validation_images=0',
    *flags,
  ]
  assert feed.make_flags(['--validation_images=5'], True) == [
    '--epochs_over=dataset',
    *flags,
  ]
  assert feed.make_flags([], False) == ['--epochs_over=dataset']


def test_a_first_example_that_cannot_be_used_is_one_line():
  class Empty:
    def take(self, number):
      return []

  with pytest.raises(cli.RunError, match='^data: it has no example$'):
    feed_lib.Feed(Empty()).make_layout(is_images=True)
