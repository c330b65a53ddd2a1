"""The SavedModel that export writes and predict reads.

Its signature, serving_default, takes and returns what the problem says, see
training/problems/problem_spec.py; for images, it takes

  images: uint8 [n, height, width, channels], as they are in the data set

and returns

  classes: int64 [n], the most probable class
  probabilities: float32 [n, number of classes]

TensorFlow 1 and 2 load it, and so does TensorFlow Serving, without our code.
spark/prediction.py reads it, too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from google.protobuf.message import DecodeError

from distmnist.cluster import errors
from distmnist.common import cli, files
from distmnist.common.names import EXPORT
from distmnist.data import split
from distmnist.serving import delta
from distmnist.storage import copies, paths, scratch, urls

_EXPORT_DIR = flags.DEFINE_string(
  'export_dir',
  None,
  'The folder of the SavedModel; it may be an address of a store: s3://, gs:// '
  'or hdfs://.',
)

_SIGNATURE = (
  tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
)
_GRAPH_FILE = 'saved_model.pb'
_EXPECTED = (
  'images uint8 [n, height, width, channels] -> classes, probabilities'
)


def export_dir_from_flags() -> str:
  """Returns the path of --export_dir; raises cli.UsageError without it."""
  if not _EXPORT_DIR.value:
    raise cli.UsageError('--export_dir is missing: the folder of a SavedModel')
  return urls.expand(_EXPORT_DIR.value)


def check_free(export_dir: str) -> None:
  """Checks that a SavedModel may be written to `export_dir`.

  Raises:
    cli.RunError: something is there already.
    cli.UsageError: it is in a store that does not answer.
  """
  if _is_folder(export_dir):
    if paths.list_names(export_dir):
      raise cli.RunError(
        f'--export_dir={export_dir} is not empty, and nothing is overwritten: '
        'give a new folder, or remove this one'
      )
  elif os.path.lexists(export_dir):
    raise cli.RunError(
      f'--export_dir={export_dir} is not a folder: give a new one'
    )


def _is_folder(export_dir: str) -> bool:
  try:
    return paths.is_folder(export_dir)
  except OSError as error:
    raise cli.UsageError(
      f'--export_dir={export_dir} cannot be used: {error.strerror}'
    ) from error


def write(
  export_dir: str,
  session: tf.Session,
  saver: tf.train.Saver,
  inputs: Mapping[str, tf.Tensor],
  outputs: Mapping[str, tf.Tensor],
  record: Mapping[str, Any] | None = None,
) -> int:
  """Writes the graph and the variables of a session, whole or not at all.

  Args:
    export_dir: new or empty; folders above it are made.
    session, saver, inputs, outputs, record: as of `build`.

  Returns:
    The bytes written.

  Raises:
    cli.RunError: it cannot be written.
  """

  def fill(folder: str) -> None:
    build(folder, session, saver, inputs, outputs, record)

  return write_folder(export_dir, fill, _GRAPH_FILE)


def write_folder(
  export_dir: str, fill: Callable[[str], None], last: str
) -> int:
  """Makes a folder with all that `fill` puts there, whole or not at all.

  Args:
    export_dir: new or empty; folders above it are made.
    fill: is given the path of a folder here, which it makes.
    last: the name of the file that shows that the folder is whole; in a store
      it comes last.

  Returns:
    The bytes written.

  Raises:
    cli.RunError: it cannot be written; and what `fill` raises.
  """
  try:
    if not urls.is_remote(export_dir):
      return _write_here(export_dir, fill)
    draft = os.path.join(scratch.make('export'), 'model')
    num_bytes = _write_here(draft, fill)
    copies.upload_folder(draft, export_dir, lambda name: name == last)
    return num_bytes
  except (tf.errors.OpError, OSError) as error:
    is_op = isinstance(error, tf.errors.OpError)
    reason = errors.explain(error) if is_op else error.strerror
    raise cli.RunError(
      f'--export_dir={export_dir} cannot be written: {reason}; make room '
      'there, or give a folder of your own'
    ) from error


def _write_here(export_dir: str, fill: Callable[[str], None]) -> int:
  parent, name = os.path.split(os.path.realpath(export_dir))
  os.makedirs(parent, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f'.{name}.', dir=parent) as draft:
    # The draft's own rights are its owner's alone; those of a folder in it are
    # as usual here.
    new = os.path.join(draft, name)
    fill(new)
    num_bytes = _sync(new)
    # This replaces an empty folder, and fails if the folder is not empty.
    os.rename(new, os.path.join(parent, name))
  return num_bytes


def build(
  folder: str,
  session: tf.Session,
  saver: tf.train.Saver,
  inputs: Mapping[str, tf.Tensor],
  outputs: Mapping[str, tf.Tensor],
  record: Mapping[str, Any] | None = None,
) -> None:
  """Writes a SavedModel to a folder that is not there yet.

  Args:
    folder: a path here.
    session: of the graph, its variables set.
    saver: of these variables.
    inputs, outputs: tensors [n, ...] of the graph, by the names they get.
    record: what delta.RECORD_FILE says of it; None: there is no such file.

  Raises:
    tf.errors.OpError, OSError: it cannot be written.
  """
  served = tf.saved_model.build_signature_def(
    *(
      {n: tf.saved_model.build_tensor_info(t) for n, t in tensors.items()}
      for tensors in (inputs, outputs)
    ),
    method_name=tf.saved_model.PREDICT_METHOD_NAME,
  )
  has_tables = tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
  builder = tf.saved_model.Builder(folder)
  builder.add_meta_graph_and_variables(
    session,
    [tf.saved_model.SERVING],
    {_SIGNATURE: served},
    strip_default_attrs=True,
    saver=saver,
    # Fills the lookup tables when the model is loaded.
    main_op=tf.tables_initializer() if has_tables else None,
  )
  builder.save()
  if record is not None:
    path = os.path.join(folder, delta.RECORD_FILE)
    os.makedirs(os.path.dirname(path))
    files.write_json(path, record)


class NoVariables(tf.train.Saver):
  """Saves nothing: a SavedModel made with it lacks its variables."""

  def save(self, *_: Any, **__: Any) -> None:
    """Does nothing."""


def _sync(folder: str) -> int:
  """Syncs all files of `folder` to disk; returns their bytes."""
  num_bytes = 0
  for parent, _, names in os.walk(folder):
    for name in names:
      with open(os.path.join(parent, name), 'rb') as file:
        os.fsync(file)
        num_bytes += os.fstat(file.fileno()).st_size
  return num_bytes


class Model:
  """A loaded SavedModel.

  Attributes:
    inputs, outputs: {name: tf.TensorSpec [n, ...]} each.
  """

  def __init__(self, export_dir: str) -> None:
    """Loads it.

    Raises:
      cli.RunError: it is not a SavedModel, is not whole, or has no signature
        of ours.
    """
    self._export_dir = export_dir
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    self._session = tf.Session(graph=tf.Graph(), config=config)
    signatures = self._load()
    if _SIGNATURE not in signatures:
      names = ', '.join(sorted(signatures)) or 'none at all'
      raise self._error(
        f'has no signature {_SIGNATURE} (it has {names}): give one that '
        f'{EXPORT} has written'
      )
    served = signatures[_SIGNATURE]
    self.inputs, self._input_names = self._read_infos(served.inputs)
    self.outputs, self._output_names = self._read_infos(served.outputs)

  def _load(self) -> Mapping[str, Any]:
    """Loads graph and variables; returns {name: SignatureDef}."""
    if not _is_folder(self._export_dir):
      raise self._error(f'was not found: {EXPORT} writes one')
    local = copies.fetch_folder(self._export_dir)
    if not tf.saved_model.contains_saved_model(local):
      raise self._error(
        f'is not a SavedModel: it has no {_GRAPH_FILE}; {EXPORT} writes one'
      )
    try:
      with self._session.graph.as_default():
        return tf.saved_model.load(
          self._session, [tf.saved_model.SERVING], local
        ).signature_def
    except tf.errors.OpError as error:
      raise self._error(
        'is not whole: its variables are missing or damaged '
        f'({type(error).__name__}); write it again with {EXPORT}'
      ) from error
    except (OSError, RuntimeError, ValueError, DecodeError) as error:
      reason = (str(error) or type(error).__name__).splitlines()[0]
      if reason.startswith('MetaGraphDef'):
        reason = f'it has no model with the tag {tf.saved_model.SERVING!r}'
      raise self._error(
        f'cannot be read: {reason}; write it again with {EXPORT}'
      ) from error

  def _read_infos(
    self, infos: Mapping[str, Any]
  ) -> tuple[dict[str, tf.TensorSpec], dict[str, str]]:
    """Returns the specs and the names of tensors, by what they are served as.

    In alphabetical order, as a protobuf has them in any.
    """
    for name, info in infos.items():
      if info.WhichOneof('encoding') != 'name':
        raise self._error(
          f'has {name!r} as a sparse or ragged tensor: expected a model of '
          'dense ones'
        )
    specs = {
      name: tf.TensorSpec(
        tf.TensorShape(infos[name].tensor_shape), tf.as_dtype(infos[name].dtype)
      )
      for name in sorted(infos)
    }
    return specs, {name: infos[name].name for name in specs}

  def _error(self, what: str) -> cli.RunError:
    return cli.RunError(f'--export_dir={self._export_dir} {what}')

  def find_image_shape(self) -> tuple[int, int, int]:
    """Returns (height, width, channels) of the images that the model takes.

    Raises:
      cli.RunError: it takes something else, or gives no classes and
        probabilities.
    """
    if [*self.inputs] == ['images'] and (
      {'classes', 'probabilities'} <= {*self.outputs}
    ):
      images, found = self.inputs['images'], self.outputs['probabilities']
      is_whole = all(
        each.shape[1:].is_fully_defined() for each in (images, found)
      )
      if is_whole and images.dtype == tf.uint8 and images.shape.rank == 4:
        return tuple(images.shape[1:].as_list())
    raise self._error(
      f'takes {split.describe_specs(self.inputs)} and gives '
      f'{split.describe_specs(self.outputs)}, expected {_EXPECTED}: give its '
      'examples by --inputs, or the model of images'
    )

  def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns an array [n, ...] for each output, given one for each input.

    Raises:
      tf.errors.OpError: the graph fails on these examples.
      cli.RunError: an output has not one value for each example.
    """
    feed = {self._input_names[name]: array for name, array in arrays.items()}
    found = self._session.run(self._output_names, feed)
    num_examples = len(next(iter(arrays.values())))
    for name, array in found.items():
      if array.shape[:1] != (num_examples,):
        raise cli.RunError(
          f'the model gives {name!r} of shape {[*array.shape]} for '
          f'{num_examples:,} examples: expected [{num_examples}, ...], a value '
          'for each; serve(outputs) of a --problem says what is served'
        )
    return found
