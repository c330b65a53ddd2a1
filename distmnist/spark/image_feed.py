"""Where the images of a training on Spark come from, and what that takes."""

import dataclasses
import enum

from distmnist.common import cli
from distmnist.launching import jobs
from distmnist.spark import barrier_job


class InputMode(enum.Enum):
  """Where the images come from; see `training.run`."""

  FILES = 'files'
  RDD = 'rdd'


@dataclasses.dataclass(frozen=True)
class ImageFeed:
  """The images that Spark brings to the workers.

  Attributes:
    data, test_data: RDD of (image, label), or DataFrame; see `training.run`.
    image_shape: (height, width, channels).
    num_classes: int, the labels are below it.
    limit_mb: float, the most that one worker takes.
  """

  data: object
  test_data: object
  image_shape: tuple
  num_classes: int
  limit_mb: float

  def make_rdd(self, sc, num_ps, num_workers):
    """Returns the RDD with a partition a task, its images within.

    Raises:
      cli.RunError: the first image is none of this shape, or Spark cannot
        compute it.
    """
    # NumPy, which a launch does without.
    from distmnist.spark import rdd_input

    for name in ('data', 'test_data'):
      images = getattr(self, name)
      try:
        rdd_input.check_first(images, self.image_shape, self.num_classes)
      except Exception as error:
        raise cli.RunError(f'{name}: {barrier_job.explain(error)}') from error
    return rdd_input.make_rdd(
      sc,
      self.data,
      self.test_data,
      num_ps,
      num_workers,
      self.image_shape,
      self.num_classes,
    )

  def make_flags(self, train_flags):
    """Returns the flags (list of str) that tell train of these images.

    Args:
      train_flags: list of str, those that the user has given.
    """
    from distmnist.spark import rdd_input

    added = []
    if jobs.flag_value(train_flags, 'validation_images') is None:
      added.append('--validation_images=0')
    return added + rdd_input.make_flags(self.image_shape, self.num_classes)

  def make_spec(self):
    """Returns what the executors have to know of them (dict)."""
    return {'image_shape': list(self.image_shape), 'limit_mb': self.limit_mb}


def make(
  input_mode, data, test_data, train_flags, image_shape, num_classes, limit_mb
):
  """Returns the ImageFeed, None for InputMode.FILES; see `training.run`.

  Raises:
    cli.UsageError: what is given does not go together.
  """
  if input_mode is InputMode.FILES:
    if data is not None or test_data is not None:
      raise cli.UsageError(
        'data is given, but input_mode is InputMode.FILES: give InputMode.RDD'
      )
    return None
  if data is None or test_data is None:
    raise cli.UsageError(
      'InputMode.RDD needs data and test_data, such as'
      ' data, test_data = rdd.randomSplit([0.9, 0.1], seed=0)'
    )
  for name in ('dataset', 'data_dir', 'epochs_over'):
    if jobs.flag_value(train_flags, name) is not None:
      raise cli.UsageError(
        f'--{name} is for InputMode.FILES: leave it out, as the images come'
        ' from data'
      )
  return ImageFeed(data, test_data, tuple(image_shape), num_classes, limit_mb)
