"""What goes with which --input_mode, and what Spark's own images take."""

import pytest

from distmnist.common import cli
from distmnist.spark import image_feed
from distmnist.spark.image_feed import InputMode


def make(*given):
  return image_feed.make(
    *given, image_shape=(1, 2, 3), num_classes=4, limit_mb=5
  )


@pytest.mark.parametrize(
  ('mode', 'data', 'test_data', 'flags', 'said'),
  [
    (InputMode.FILES, None, [], [], 'data is given, but input_mode is'),
    (InputMode.RDD, None, [], [], 'needs data and test_data'),
    (InputMode.RDD, [], [], ['--data_dir=/a'], '--data_dir is for InputMode'),
    (InputMode.RDD, [], [], ['--epochs_over=dataset'], '--epochs_over is for'),
  ],
)
def test_what_does_not_go_together_is_refused(
  mode, data, test_data, flags, said
):
  with pytest.raises(cli.UsageError, match=said):
    make(mode, data, test_data, flags)


def test_files_need_no_data_and_data_no_files():
  make(InputMode.FILES, None, None, ['--dataset=mnist'])
  make(InputMode.RDD, [], [], ['--model=cnn'])


def test_train_is_told_of_the_images():
  feed = image_feed.ImageFeed([], [], (8, 8, 3), 7, 16.0)
  flags = [
    *('--dataset=npy', '--npy_image_shape=8,8,3', '--npy_classes=7'),
    '--epochs_over=dataset',
  ]
  assert feed.make_flags([]) == ['--validation_images=0', *flags]
  assert feed.make_flags(['--validation_images=5']) == flags
  assert feed.make_spec() == {'image_shape': [8, 8, 3], 'limit_mb': 16.0}
