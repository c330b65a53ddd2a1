"""A SavedModel that takes images and gives their classes."""

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.serving import saved_model

_EXPECTED = (
  'images uint8 [n, height, width, channels] -> classes, probabilities'
)


class ImageModel(saved_model.Model):
  """The SavedModel of an image model.

  Attributes:
    image_shape: tuple of int, (height, width, channels).
    num_classes: int.
  """

  def __init__(self, export_dir):
    """Loads it, see saved_model.Model.

    Raises:
      cli.RunError: it cannot be loaded, or does not take images.
    """
    super().__init__(export_dir)
    if not self._takes_images():
      taken = saved_model.describe_signature(self.inputs)
      given = saved_model.describe_signature(self.outputs)
      raise cli.RunError(
        f'--export_dir={export_dir} takes {taken} and gives {given}, expected '
        f'{_EXPECTED}: give its examples by --inputs, or the model of images'
      )
    self.image_shape = tuple(self.inputs['images'].shape[1:].as_list())
    self.num_classes = self.outputs['probabilities'].shape[-1]

  def _takes_images(self):
    if [*self.inputs] != ['images']:
      return False
    if not {'classes', 'probabilities'} <= {*self.outputs}:
      return False
    images = self.inputs['images']
    shapes = images.shape, self.outputs['probabilities'].shape
    return (
      images.dtype == tf.uint8
      and shapes[0].rank == 4
      and all(shape[1:].is_fully_defined() for shape in shapes)
    )

  def predict(self, images):
    """Returns (classes, probabilities) of uint8 [n, height, width, channels].

    classes: int64 [n]; probabilities: float32 [n, num_classes].
    """
    found = self.run({'images': images})
    return found['classes'], found['probabilities']
