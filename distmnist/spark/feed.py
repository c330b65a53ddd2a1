"""The examples that Spark brings to the workers, and what that takes."""

import dataclasses

from distmnist.common import cli, command_line
from distmnist.spark import barrier_job


@dataclasses.dataclass(frozen=True)
class Feed:
  """Examples from Spark to train on, instead of examples from files.

  Attributes:
    data: RDD of (x, y), or DataFrame. x and y are numbers, text, arrays, or
      dicts or tuples of these; the first example sets their shapes and types.
      For images without a --problem, x is bytes, a uint8 array, or numbers
      from 0 to 255.
    test_data: likewise, for the chief's report.
    x, y: the columns of a DataFrame: a name; a list of names of number
      columns, which become an array; or {name: one of these}.
    image_shape: (height, width, channels), for images without a --problem.
    num_classes: int; the labels of such images are less than this.
    timeout_secs: float, the time in which the workers must get all examples.
    limit_mb: float, the most that one worker accepts.
  """

  data: object
  test_data: object = None
  x: object = 'image'
  y: object = 'label'
  image_shape: tuple = (28, 28, 1)
  num_classes: int = 10
  timeout_secs: float = 600.0
  limit_mb: float = 4096.0

  def check(self, train_flags, needs_test_data=True):
    """Raises cli.UsageError if this conflicts with the flags of train."""
    if needs_test_data and self.test_data is None:
      raise cli.UsageError(
        'the feed has no test_data: give some, such as'
        ' data, test_data = rdd.randomSplit([0.9, 0.1], seed=0)'
      )
    for name in ('dataset', 'data_dir', 'epochs_over', 'fed_dir'):
      if command_line.find_value(train_flags, name) is not None:
        raise cli.UsageError(
          f'--{name} does not go with a feed: leave it out, as the examples'
          ' come from its data'
        )

  def make_layout(self, is_images):
    """Returns the layout (dict) of the examples; see spark/layouts.py.

    Args:
      is_images: bool, whether they are images, for --model and --dataset.

    Raises:
      cli.RunError: a first example cannot be used, or Spark cannot compute it.
    """
    # These import NumPy, which a launch does without.
    from distmnist.spark import layouts, rdd_input

    layout = None
    if is_images:
      layout = layouts.make_of_images(self.image_shape, self.num_classes)
    for name, data in (('data', self.data), ('test_data', self.test_data)):
      if data is None:
        continue
      try:
        pairs = rdd_input.get_pairs(data, self.x, self.y)
        layout = rdd_input.check_first(pairs, layout)
      except Exception as error:
        raise cli.RunError(f'{name}: {barrier_job.explain(error)}') from error
    return layout

  def make_rdd(self, sc, num_ps, num_workers, layout):
    """Returns the RDD with one partition per task, holding its examples."""
    from distmnist.spark import rdd_input

    pairs = [
      rdd_input.get_pairs(data, self.x, self.y)
      for data in (self.data, self.test_data)
    ]
    return rdd_input.make_rdd(sc, *pairs, num_ps, num_workers, layout)

  def bring(self, sc, program, num_ps, num_workers):
    """Has the workers train on these examples, which `check` has accepted.

    Args:
      sc: pyspark.SparkContext.
      program: program.Program; it gets the flags with which train uses them.
      num_ps, num_workers: int, the shape of the cluster.

    Returns:
      (RDD with one partition per task, holding its examples; dict, what each
      task must know about them).
    """
    is_images = program.is_of_images
    layout = self.make_layout(is_images)
    rdd = self.make_rdd(sc, num_ps, num_workers, layout)
    if not program.main:
      program.flags.extend(self.make_flags(program.flags, is_images))
    flag = 'data_dir' if is_images else 'fed_dir'
    return rdd, {'layout': layout, 'limit_mb': self.limit_mb, 'flag': flag}

  def make_flags(self, train_flags, is_images):
    """Returns the flags (list of str) with which train uses these examples.

    Args:
      train_flags: list of str, given by the user.
      is_images: see `make_layout`.
    """
    # A worker's own files: no other worker has these examples.
    added = ['--epochs_over=dataset']
    if not is_images:
      return added
    if command_line.find_value(train_flags, 'validation_images') is None:
      added.append('--validation_images=0')
    return [
      *added,
      '--dataset=npy',
      f'--npy_image_shape={",".join(map(str, self.image_shape))}',
      f'--npy_classes={self.num_classes}',
    ]
