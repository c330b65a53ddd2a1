"""Which class the images of files are of, by a SavedModel of distmnist.export.

  python -m distmnist.predict --export_dir=logs/model --images='digits/*.png'
  python -m distmnist.predict --export_dir=logs/model \\
      --images=t10k-images-idx3-ubyte.gz --labels=t10k-labels-idx1-ubyte.gz

prints a line an image: where it is, its class, and how probable that is. Of
an IDX file come the first ten; --output has all of them.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import csv
import os
import signal
import sys
import time

import numpy as np
from absl import flags

from distmnist.common import cli
from distmnist.common import files as files_lib
from distmnist.common.console import Console
from distmnist.common.names import PREDICT
from distmnist.data import image_files
from distmnist.serving import saved_model

_IMAGES = flags.DEFINE_list(
  'images',
  [],
  'IDX files, gzipped or not, and PNGs, with commas between them; a name may '
  "be a pattern, such as 'digits/*.png'. Images have the model's height and "
  'width; colours are turned to grey where it takes grey.',
)
_LABELS = flags.DEFINE_string(
  'labels',
  None,
  'IDX file with the class of each image of --images, for the accuracy.',
)
_INVERT = flags.DEFINE_bool(
  'invert',
  False,
  'Turn light into dark: MNIST is white on black, what people draw is black on '
  'white.',
)
_CHUNK_SIZE = flags.DEFINE_integer(
  'chunk_size',
  250,
  'Images predicted at once; with fewer it takes less memory.',
  lower_bound=1,
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'CSV file to write, with a row for each image.'
)

_NUM_SHOWN = 10
# The mean of what is drawn black on white is above it: MNIST's is 33 of 255.
_BRIGHT = 150


def main():
  export_dir = saved_model.export_dir_from_flags()
  if not _IMAGES.value:
    raise cli.UsageError('--images is missing: IDX files or PNGs')
  paths = image_files.find(_IMAGES.value)
  output = _OUTPUT.value and os.path.expanduser(_OUTPUT.value)
  if output:
    check_output(output)
  model = saved_model.Model(export_dir)
  reader = image_files.Reader(model.image_shape)
  files = [reader.read(path) for path in paths]
  num_images = sum(len(file.images) for file in files)
  labels = None
  if _LABELS.value:
    labels = image_files.read_labels(
      os.path.expanduser(_LABELS.value), num_images, model.num_classes
    )
  classes, probabilities = predict(model, files, num_images)
  if output:
    write_csv(output, files, classes, probabilities, labels)
  for line in format_lines(files, classes, probabilities, output):
    print(line)
  if labels is not None:
    num_correct = int(np.sum(classes == labels))
    print(
      f'accuracy {num_correct / num_images:.4f} ({num_correct:,} of '
      f'{num_images:,} images)'
    )


def predict(model, files, num_images):
  """Returns (classes, probabilities) of the images of all files.

  classes: int64 [num_images]; probabilities: float32 [num_images], each that
  of the image's class.
  """
  images = np.concatenate([file.images for file in files])
  if _INVERT.value:
    images = 255 - images
  elif images.shape[-1] == 1 and images.mean() > _BRIGHT:
    print(
      f'{PREDICT}: these images are mostly bright, those of MNIST are '
      'white on black: see --invert',
      file=sys.stderr,
    )
  console = Console(stream=sys.stderr)
  start_secs = time.monotonic()
  classes, probabilities = [], []
  for start in range(0, num_images, _CHUNK_SIZE.value):
    if start and console.is_due():
      console.progress(
        f'{start:,} of {num_images:,} images', start / num_images
      )
    found, share = model.predict(images[start : start + _CHUNK_SIZE.value])
    classes.append(found)
    probabilities.append(share[np.arange(len(found)), found])
  if len(classes) > 1:
    secs = time.monotonic() - start_secs
    console.say(f'{num_images:,} images in {secs:.1f} s')
  return np.concatenate(classes), np.concatenate(probabilities)


def format_lines(files, classes, probabilities, output):
  """Yields the lines to print.

  Args:
    files: list of image_files.File.
    classes, probabilities: see `predict`.
    output: str or None, the CSV file that has all of them.
  """
  start = 0
  for file in files:
    num_shown = len(file.images[:_NUM_SHOWN])
    for i in range(num_shown):
      name = file.path if file.is_png else f'{file.path}[{i}]'
      yield (f'{name}  {classes[start + i]}  {probabilities[start + i]:.4f}')
    start += len(file.images)
    if num_left := len(file.images) - num_shown:
      where = f'in {output}' if output else 'with --output=FILE.csv'
      yield f'{file.path}: and {num_left:,} more, {where}'


def check_output(path):
  """Raises cli.RunError if no file can be written there."""
  folder = os.path.dirname(path) or '.'
  reason = None
  if os.path.isdir(path):
    reason = 'it is a folder'
  elif not os.path.isdir(folder):
    reason = f'there is no folder {folder}'
  elif not os.access(folder, os.W_OK):
    reason = f'{folder} is not yours to write to'
  if reason:
    raise cli.RunError(f'--output={path} cannot be written: {reason}')


def write_csv(path, files, classes, probabilities, labels):
  """Writes the CSV file, whole or not at all.

  Args:
    path: str.
    files: list of image_files.File.
    classes, probabilities: see `predict`.
    labels: int32 array or None.
  """
  places = [(file.path, i) for file in files for i in range(len(file.images))]
  try:
    with files_lib.replacing(path) as out:
      writer = csv.writer(out)
      header = ['file', 'index', 'class', 'probability']
      writer.writerow(header + ([] if labels is None else ['label']))
      for i, place in enumerate(places):
        row = [*place, classes[i], f'{probabilities[i]:.6f}']
        writer.writerow(row + ([] if labels is None else [labels[i]]))
  except OSError as error:
    raise cli.RunError(
      f'--output={path} cannot be written: {error.strerror}'
    ) from error


def run():
  # `predict ... | head` ends when head does, as programs are used to.
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  cli.run(main)


if __name__ == '__main__':
  run()
