"""Runs a SavedModel of distmnist.export on the examples in files.

  python -m distmnist.predict --export_dir=logs/model --images='digits/*.png'
  python -m distmnist.predict --export_dir=logs/model \\
      --images=t10k-images-idx3-ubyte.gz --labels=t10k-labels-idx1-ubyte.gz
  python -m distmnist.predict --export_dir=logs/mine --inputs=new.csv

prints one line per example: where it is, and what the model gives for it; for
an image, its class, and how probable that is. Only the first ten examples of
each file are printed; --output has all of them.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import errors
from distmnist.common import cli, refusals, signals
from distmnist.common.console import Console
from distmnist.common.names import PREDICT
from distmnist.common.refusals import Refusal
from distmnist.data import image_files
from distmnist.serving import example_files, result_files, saved_model

_INPUTS = flags.DEFINE_list(
  'inputs',
  [],
  'Files with examples for any model, separated by commas: .npy, .npz, .jsonl '
  '(JSON lines) or .csv (with a header). An array, a key or a column has the '
  "name of the model's input. A name may be a pattern, such as 'new/*.csv'.",
)
_MISSING = flags.DEFINE_float(
  'missing',
  None,
  'The number that an empty field of a .csv file counts as: `missing` of the '
  'csv.Reader that the model was trained with. By default a column of numbers '
  'has no empty field.',
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
  *('export_dir', 'inputs', 'missing', 'images', 'labels', 'invert'),
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


def main() -> int:
  export_dir = saved_model.export_dir_from_flags()
  refusals.refuse(_REFUSALS)
  paths = image_files.find(_IMAGES.value or _INPUTS.value)
  output = _OUTPUT.value and os.path.expanduser(_OUTPUT.value)
  if output:
    result_files.check(output)
  predict_files = predict_images if _IMAGES.value else predict_inputs
  try:
    with signals.raising():  # A draft of the output is removed, then.
      predict_files(saved_model.Model(export_dir), paths, output)
  except signals.SignalError as error:
    return error.exit_code
  return 0


def predict_inputs(
  model: saved_model.Model, paths: Sequence[str], output: str | None
) -> None:
  """Prints what any model gives for the examples of --inputs."""
  missing = _MISSING.value
  read = [example_files.read(path, model.inputs, missing) for path in paths]
  shapes = [{n: a.shape[1:] for n, a in arrays.items()} for arrays in read]
  for path, shape in zip(paths, shapes, strict=True):
    if shape != shapes[0]:
      raise cli.RunError(
        f'{path} has examples of a different shape from {paths[0]}: predict '
        'them separately'
      )
  arrays = {n: np.concatenate([each[n] for each in read]) for n in read[0]}
  parts = [
    result_files.Part(path, _count(each))
    for path, each in zip(paths, read, strict=True)
  ]
  show(parts, predict(model, arrays), output, result_files.describe)


def predict_images(
  model: saved_model.Model, paths: Sequence[str], output: str | None
) -> None:
  """Prints the classes of --images, and the accuracy if there are labels."""
  reader = image_files.Reader(model.find_image_shape())
  files = [reader.read(path) for path in paths]
  images = np.concatenate([file.images for file in files])
  num_images, labels = len(images), None
  if _LABELS.value:
    num_classes = model.outputs['probabilities'].shape[-1]
    labels = image_files.read_labels(
      os.path.expanduser(_LABELS.value), num_images, num_classes
    )
  if _INVERT.value:
    images = 255 - images
  elif images.shape[-1] == 1 and images.mean() > _BRIGHT:
    print(
      f'{PREDICT}: these images are mostly bright, but MNIST is white on '
      'black: see --invert',
      file=sys.stderr,
    )
  found = predict(model, {'images': images})
  classes = found['classes']
  results = {
    'class': classes,
    'probability': found['probabilities'][np.arange(num_images), classes],
  }
  if labels is not None:
    results['label'] = labels
  parts = [
    result_files.Part(file.path, len(file.images), file.is_png)
    for file in files
  ]
  show(parts, results, output, _describe_class)
  if labels is not None:
    num_correct = int(np.sum(classes == labels))
    print(
      f'accuracy {num_correct / num_images:.4f} ({num_correct:,} of '
      f'{num_images:,} images)'
    )


def _describe_class(name: str, value: object) -> str:
  """Returns what is printed for an image: no names, and no label."""
  texts = {'class': f'{value}', 'probability': f'{value:.4f}'}
  return texts.get(name, '')


def show(
  parts: Sequence[result_files.Part],
  results: result_files.Results,
  output: str | None,
  describe: Callable[[str, object], str],
) -> None:
  """Writes --output, and prints the first examples of each file."""
  if output:
    result_files.write(output, parts, results)
  for line in result_files.format_lines(parts, results, output, describe):
    print(line)


def predict(
  model: saved_model.Model, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns an array [n, ...] for each output, --chunk_size examples a time.

  Args:
    model: gives them.
    arrays: one [n, ...] for each input, with the same n >= 1.

  Raises:
    cli.RunError: the graph fails on these examples, or an output does not fit
      them.
  """
  console = Console(stream=sys.stderr)
  start_secs = time.monotonic()
  num_examples, chunks = _count(arrays), []
  for start in range(0, num_examples, _CHUNK_SIZE.value):
    if start and console.is_due():
      console.progress(
        f'{start:,} of {num_examples:,} examples', start / num_examples
      )
    end = min(start + _CHUNK_SIZE.value, num_examples)
    try:
      chunks.append(model.run({n: a[start:end] for n, a in arrays.items()}))
    except tf.errors.OpError as error:
      raise cli.RunError(
        f'the model fails on the examples {start:,} to {end - 1:,}: '
        f'{errors.explain(error)}'
      ) from error
  if len(chunks) > 1:
    secs = time.monotonic() - start_secs
    console.say(f'{num_examples:,} examples in {secs:.1f} s')
  results = {}
  for name in chunks[0]:
    found = [chunk[name] for chunk in chunks]
    shapes = sorted({array.shape[1:] for array in found})
    if len(shapes) > 1:
      raise cli.RunError(
        f'the model gives {name!r} of {[*shapes[0]]} for some examples and of '
        f'{[*shapes[1]]} for others: expected one shape, whatever examples are '
        'predicted together; a larger --chunk_size may help'
      )
    results[name] = np.concatenate(found)
  return results


def _count(arrays: Mapping[str, np.ndarray]) -> int:
  return len(next(iter(arrays.values())))


def run() -> None:
  # `predict ... | head` ends when head does, as is usual for programs.
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
