"""Problems for tests: of images with a net of the test's, and a user's own."""

import textwrap
import types

from distmnist.data import image_ops
from distmnist.problems import images
from distmnist.training.problems import problem, problem_module

# The default, 60,000 of them, takes a second to draw.
FEW_IMAGES = (
  '--dataset=synthetic',
  '--synthetic_train_images=240',
  '--synthetic_test_images=40',
  '--validation_images=40',
)


def of_images(build_model):
  """Returns the problem.Problem of images whose net is `build_model`."""
  return problem.Problem(
    types.SimpleNamespace(
      best=images.best,
      unit=images.unit,
      build=build_model,
      loss=images.loss,
      metrics=images.metrics,
      serve=images.serve,
      preprocess=lambda x, y, is_training: (image_ops.scale(x), y),
      flags_of_meaning=lambda: [],
      describe=lambda: 'a net on images',
    )
  )


def write(path, text):
  """Writes a problem's file; returns its path as --problem takes it (str)."""
  path.write_text(textwrap.dedent(text))
  return str(path)


def load(path, set_flags, *words):
  """Returns the problem.Problem of the file at `path`."""
  problem_module.import_named([f'--problem={path}'])
  set_flags(f'--problem={path}', *words)
  return problem.from_flags()
