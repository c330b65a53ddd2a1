"""Runs a SavedModel of distmnist.export on the examples in files.

  python -m distmnist.predict --export_dir=logs/model --images='digits/*.png'
  python -m distmnist.predict --export_dir=logs/model \\
      --images=t10k-images-idx3-ubyte.gz --labels=t10k-labels-idx1-ubyte.gz
  python -m distmnist.predict --export_dir=logs/mine --inputs=new.csv

prints one line per example: where it is, and what the model gives for it; for
an image, its class, and how probable that is. Only the first ten examples of
each file are printed; --output has all of them.
"""

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import os
import signal
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors
from distmnist.common import cli, refusals, signals
from distmnist.common.console import Console
from distmnist.common.names import PREDICT
from distmnist.common.refusals import Refusal
from distmnist.data import image_files
from distmnist.serving import (
  example_files,
  image_model,
  result_files,
  saved_model,
)

_INPUTS = flags.DEFINE_list(
  'inputs',
  [],
  'Files with examples for any model, separated by commas: .npy, .npz, .jsonl '
  '(JSON lines) or .csv (with a header). An array, a key or a column has the '
  "name of the model's input. A name may be a pattern, such as 'new/*.csv'.",
)
_IMAGES = flags.DEFINE_list(
  'images',
  [],
  'For a model of images: IDX files, gzipped or not, and PNGs, separated by '
  "commas; a name may be a pattern, such as 'digits/*.png'. Images have the "
  "model's height and width; colours are turned to grey if the model takes "
  'grey.',
)
_LABELS = flags.DEFINE_string(
  'labels',
  None,
  'IDX file with the class of each image of --images, for the accuracy.',
)
_INVERT = flags.DEFINE_bool(
  'invert',
  False,
  'Invert --images: MNIST is white on black, but people draw black on white.',
)
_CHUNK_SIZE = flags.DEFINE_integer(
  'chunk_size',
  250,
  'Examples predicted at once; fewer take less memory.',
  lower_bound=1,
)
_OUTPUT = flags.DEFINE_string(
  'output',
  None,
  'File to write, with all examples: .csv, .jsonl (JSON lines) or .npz.',
)

# What --help explains.
_FIRST_FLAGS = (
  *('export_dir', 'inputs', 'images', 'labels', 'invert'),
  *('output', 'chunk_size'),
)

# The mean of images drawn black on white is above this; MNIST's is 33 of 255.
_BRIGHT = 150


# They need no facts.
_REFUSALS = (
  Refusal(
    lambda f: '--images and --inputs',
    lambda f: bool(_IMAGES.value) == bool(_INPUTS.value),
    lambda f: (
      f' are {"both given" if _IMAGES.value else "missing"}: expected IDX '
      'files or PNGs by --images, or .npy, .npz, .jsonl or .csv files by '
      '--inputs'
    ),
  ),
  Refusal(
    lambda f: '--labels and --invert',
    lambda f: _INPUTS.value and (_LABELS.value or _INVERT.value),
    ' go with --images, not --inputs',
  ),
)


def main():
  export_dir = saved_model.export_dir_from_flags()
  refusals.refuse(_REFUSALS)
  paths = image_files.find(_IMAGES.value or _INPUTS.value)
  output = _OUTPUT.value and os.path.expanduser(_OUTPUT.value)
  if output:
    result_files.check(output)
  predict_files = predict_images if _IMAGES.value else predict_inputs
  try:
    with signals.raising():  # A draft of the output is removed, then.
      predict_files(export_dir, paths, output)
  except signals.SignalError as error:
    return error.exit_code
  return 0


def predict_inputs(export_dir, paths, output):
  """Prints what any model gives for the examples of --inputs."""
  model = saved_model.Model(export_dir)
  read = [example_files.read(path, model.inputs) for path in paths]
  sizes = [len(next(iter(arrays.values()))) for arrays in read]
  shapes = [{n: a.shape[1:] for n, a in arrays.items()} for arrays in read]
  for path, shape in zip(paths, shapes, strict=True):
    if shape != shapes[0]:
      raise cli.RunError(
        f'{path} has examples of a different shape from {paths[0]}: predict '
        'them separately'
      )
  arrays = {n: np.concatenate([each[n] for each in read]) for n in read[0]}
  results = predict(model, arrays, sum(sizes))
  parts = [(*each, False) for each in zip(paths, sizes, strict=True)]
  write_and_print(parts, results, output, result_files.describe)


def predict_images(export_dir, paths, output):
  """Prints the classes of --images, and the accuracy if there are labels."""
  model = image_model.ImageModel(export_dir)
  reader = image_files.Reader(model.image_shape)
  files = [reader.read(path) for path in paths]
  num_images = sum(len(file.images) for file in files)
  labels = None
  if _LABELS.value:
    labels = image_files.read_labels(
      os.path.expanduser(_LABELS.value), num_images, model.num_classes
    )
  images = np.concatenate([file.images for file in files])
  if _INVERT.value:
    images = 255 - images
  elif images.shape[-1] == 1 and images.mean() > _BRIGHT:
    print(
      f'{PREDICT}: these images are mostly bright, but MNIST is white on '
      'black: see --invert',
      file=sys.stderr,
    )
  found = predict(model, {'images': images}, num_images)
  classes = found['classes']
  results = {
    'class': classes,
    'probability': found['probabilities'][np.arange(num_images), classes],
  }
  if labels is not None:
    results['label'] = labels
  parts = [(file.path, len(file.images), file.is_png) for file in files]
  write_and_print(parts, results, output, describe_class)
  if labels is not None:
    num_correct = int(np.sum(classes == labels))
    print(
      f'accuracy {num_correct / num_images:.4f} ({num_correct:,} of '
      f'{num_images:,} images)'
    )


def describe_class(name, value):
  """Returns what is printed for an image: no names, and no label."""
  texts = {'class': f'{value}', 'probability': f'{value:.4f}'}
  return texts.get(name, '')


def predict(model, arrays, num_examples):
  """Returns {name: array [num_examples, ...]} of what the model gives.

  Args:
    model: saved_model.Model.
    arrays: {name of an input: array [num_examples, ...]}.
    num_examples: int, at least 1.

  Raises:
    cli.RunError: the graph fails on these examples, or an output does not fit
      them.
  """
  console = Console(stream=sys.stderr)
  start_secs = time.monotonic()
  chunks = []
  for start in range(0, num_examples, _CHUNK_SIZE.value):
    if start and console.is_due():
      console.progress(
        f'{start:,} of {num_examples:,} examples', start / num_examples
      )
    end = start + _CHUNK_SIZE.value
    try:
      chunks.append(model.run({n: a[start:end] for n, a in arrays.items()}))
    except tf.errors.OpError as error:
      raise cli.RunError(
        f'the model fails on the examples {start:,} to '
        f'{min(end, num_examples) - 1:,}: {errors.explain(error)}'
      ) from error
  if len(chunks) > 1:
    secs = time.monotonic() - start_secs
    console.say(f'{num_examples:,} examples in {secs:.1f} s')
  return {n: _join(n, [chunk[n] for chunk in chunks]) for n in chunks[0]}


def _join(name, arrays):
  """Returns an output of all chunks; raises cli.RunError if they do not fit."""
  shapes = sorted({array.shape[1:] for array in arrays})
  if len(shapes) > 1:
    raise cli.RunError(
      f'the model gives {name!r} of {[*shapes[0]]} for some examples and of '
      f'{[*shapes[1]]} for others: expected one shape, whatever examples are '
      'predicted together; a larger --chunk_size may help'
    )
  return np.concatenate(arrays)


def write_and_print(parts, results, output, describe):
  """Writes --output, and prints the first examples of each file.

  Args: see result_files.format_lines.
  """
  if output:
    places = [(path, i) for path, size, _ in parts for i in range(size)]
    result_files.write(output, places, results)
  for line in result_files.format_lines(parts, results, output, describe):
    print(line)


def run():
  # `predict ... | head` ends when head does, as is usual for programs.
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
