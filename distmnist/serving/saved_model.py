"""The SavedModel that export writes and predict reads.

Its signature, serving_default, takes and returns what the problem says, see
training/problems/problem_spec.py; for images, it takes

  images: uint8 [n, height, width, channels], as they are in the data set

and returns

  classes: int64 [n], the most probable class
  probabilities: float32 [n, number of classes]

TensorFlow 1 and 2 load it, and so does TensorFlow Serving, without our code.
"""

import os
import tempfile

import tensorflow.compat.v1 as tf
from absl import flags
from google.protobuf.message import DecodeError

from distmnist.common import cli
from distmnist.common.names import EXPORT
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


def export_dir_from_flags():
  """Returns the path of --export_dir; raises cli.UsageError without it."""
  if not _EXPORT_DIR.value:
    raise cli.UsageError('--export_dir is missing: the folder of a SavedModel')
  return urls.expand(_EXPORT_DIR.value)


def check_free(export_dir):
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


def _is_folder(export_dir):
  try:
    return paths.is_folder(export_dir)
  except OSError as error:
    raise cli.UsageError(
      f'--export_dir={export_dir} cannot be used: {error.strerror}'
    ) from error


def write(export_dir, session, saver, inputs, outputs):
  """Writes the graph and the variables of `session`, whole or not at all.

  Args:
    export_dir: str, new or empty; folders above it are made.
    session: tf.Session.
    saver: tf.train.Saver of the variables.
    inputs, outputs: {name: tensor} of the session's graph.

  Returns:
    int, the bytes written.

  Raises:
    OSError, tf.errors.OpError: it cannot be written.
  """
  if urls.is_remote(export_dir):
    draft = os.path.join(scratch.make('export'), 'model')
    num_bytes = write(draft, session, saver, inputs, outputs)
    copies.upload_folder(draft, export_dir, lambda name: name == _GRAPH_FILE)
    return num_bytes
  served = tf.saved_model.build_signature_def(
    inputs=_make_infos(inputs),
    outputs=_make_infos(outputs),
    method_name=tf.saved_model.PREDICT_METHOD_NAME,
  )
  parent, name = os.path.split(os.path.realpath(export_dir))
  os.makedirs(parent, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f'.{name}.', dir=parent) as folder:
    new = os.path.join(folder, name)
    builder = tf.saved_model.Builder(new)
    builder.add_meta_graph_and_variables(
      session,
      [tf.saved_model.SERVING],
      {_SIGNATURE: served},
      strip_default_attrs=True,
      saver=saver,
      main_op=_build_tables(),
    )
    builder.save()
    num_bytes = _sync(new)
    # This replaces an empty folder, and fails if the folder is not empty.
    os.rename(new, os.path.join(parent, name))
  return num_bytes


def _build_tables():
  """Returns the op that fills the lookup tables on loading, or None."""
  has_tables = tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
  return tf.tables_initializer() if has_tables else None


def _make_infos(tensors):
  return {
    name: tf.saved_model.build_tensor_info(tensor)
    for name, tensor in tensors.items()
  }


def _sync(folder):
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

  def __init__(self, export_dir):
    """Loads it.

    Args:
      export_dir: str.

    Raises:
      cli.RunError: it is not a SavedModel, is not whole, or has no signature
        of ours.
    """
    if not _is_folder(export_dir):
      raise cli.RunError(
        f'--export_dir={export_dir} was not found: distmnist.export writes one'
      )
    local = copies.fetch_folder(export_dir)
    if not tf.saved_model.contains_saved_model(local):
      raise cli.RunError(
        f'--export_dir={export_dir} is not a SavedModel: it has no '
        'saved_model.pb; distmnist.export writes one'
      )
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    self._session = tf.Session(graph=tf.Graph(), config=config)
    try:
      with self._session.graph.as_default():
        meta_graph = tf.saved_model.load(
          self._session, [tf.saved_model.SERVING], local
        )
    except tf.errors.OpError as error:
      raise cli.RunError(
        f'--export_dir={export_dir} is not whole: its variables are missing or '
        f'damaged ({type(error).__name__}); write it again with '
        f'{EXPORT}'
      ) from error
    except (OSError, RuntimeError, ValueError, DecodeError) as error:
      reason = (str(error) or type(error).__name__).splitlines()[0]
      if reason.startswith('MetaGraphDef'):
        reason = f'it has no model with the tag {tf.saved_model.SERVING!r}'
      raise cli.RunError(
        f'--export_dir={export_dir} cannot be read: {reason}; write it again '
        'with distmnist.export'
      ) from error
    signatures = meta_graph.signature_def
    if _SIGNATURE not in signatures:
      names = ', '.join(sorted(signatures)) or 'none at all'
      raise cli.RunError(
        f'--export_dir={export_dir} has no signature {_SIGNATURE} (it has '
        f'{names}): give one that distmnist.export has written'
      )
    self._infos = signatures[_SIGNATURE]
    _check_dense(export_dir, self._infos)
    self.inputs = _make_specs(self._infos.inputs)
    self.outputs = _make_specs(self._infos.outputs)

  def run(self, arrays):
    """Maps {name of an input: array} to {name of an output: array [n, ...]}.

    Raises:
      tf.errors.OpError: the graph fails on these examples.
      cli.RunError: an output has not one value for each example.
    """
    feed = {self._infos.inputs[n].name: array for n, array in arrays.items()}
    # By name, as a protobuf has them in any order.
    wanted = {name: self._infos.outputs[name].name for name in self.outputs}
    found = self._session.run(wanted, feed)
    num_examples = len(next(iter(arrays.values())))
    for name, array in found.items():
      if array.shape[:1] != (num_examples,):
        raise cli.RunError(
          f'the model gives {name!r} of shape {[*array.shape]} for '
          f'{num_examples:,} examples: expected [{num_examples}, ...], a value '
          'for each; serve(outputs) of a --problem says what is served'
        )
    return found


def _check_dense(export_dir, served):
  for infos in (served.inputs, served.outputs):
    for name, info in infos.items():
      if info.WhichOneof('encoding') != 'name':
        raise cli.RunError(
          f'--export_dir={export_dir} has {name!r} as a sparse or ragged '
          'tensor: expected a model of dense ones'
        )


def _make_specs(infos):
  return {
    name: tf.TensorSpec(
      tf.TensorShape(infos[name].tensor_shape), tf.as_dtype(infos[name].dtype)
    )
    for name in sorted(infos)
  }


def describe_signature(tensors):
  """Returns 'x float32 [n, 2], lengths int64 [n]' for {name: tensor}.

  Args:
    tensors: dict of name -> what has dtype and shape, such as a tf.TensorSpec.
      The first dimension of a shape counts the examples.
  """
  return ', '.join(
    f'{name} {tensor.dtype.name} {_describe_shape(tensor.shape)}'
    for name, tensor in tensors.items()
  )


def _describe_shape(shape):
  if shape.rank is None:
    return 'of any shape'
  sizes = ['?' if size is None else str(size) for size in shape.as_list()]
  if sizes[:1] == ['?']:
    sizes[0] = 'n'
  return f'[{", ".join(sizes)}]'
