"""The center as one worker sees it: its shards, and the ways to and fro.

Inside `scope()` a model's `tf.get_variable` makes a center variable on the
ps, in shards as ever, and hands the model a view of the whole of it on the
worker's device. A view is here the value that this step has pulled; in
local_copies.py it is a variable of the worker's own. Variables that are not
trained stay what they are.
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist import wire


class Center:
  """Every trainable center variable, pulled anew in each step.

  Lists of tensors are in the order of `views`; lists of shards are in the
  order of `shards`.

  Attributes:
    views: list of what the model has in place of the center's variables.
    shards: list of tf.Variable, on the ps.
  """

  def __init__(self, cluster):
    self._device = cluster.compute_device
    self._has_ps = cluster.num_ps > 0
    self._wire = wire.Wire(cluster)
    # A gradient is computed where the loss of its tower was.
    self._has_towers = len(cluster.tower_devices) > 1
    self._shards_of = []
    self._names = []
    self.views = []

  @contextlib.contextmanager
  def scope(self):
    """The variable scope in which the model is built."""
    with tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    ):
      yield
    self._connect_views()

  def _get_variable(self, getter, name, *args, **kwargs):
    center = getter(name, *args, **kwargs)
    if not kwargs.get('trainable', True):
      return center
    if name in self._names:  # Another tower: it has the view of the first.
      return self.views[self._names.index(name)]
    self._names.append(name)
    shards = [center] if tf.is_tensor(center) else list(center)
    self._shards_of.append(shards)
    self.views.append(self._make_view(center, shards, name))
    return self.views[-1]

  def _make_view(self, center, shards, name):
    del shards
    if not self._has_ps:
      return center
    # What is small is pulled together, and only at the end is it known what
    # there is: until then the view has no value.
    with tf.device(self._device):
      return tf.identity(
        tf.placeholder(center.dtype.base_dtype, center.shape), f'pulled/{name}'
      )

  def _connect_views(self):
    if self._has_ps:
      for view, value in zip(self.views, self.read_center(), strict=True):
        view.op._update_input(0, value)

  @property
  def shards(self):
    return [shard for shards in self._shards_of for shard in shards]

  @property
  def num_bytes(self):
    """What the whole center takes on the wire, in bytes, an int."""
    return self._wire.count_bytes(self.shards)

  def read_shards(self):
    """Returns the values of the shards, a list of tensors on the ps."""
    values = []
    for shard in self.shards:
      with tf.device(shard.device):
        values.append(shard.read_value())
    return values

  def read_center(self):
    """Returns the center's values on the worker, a list of whole tensors."""
    return self.from_shards(self.read_shards())

  def from_shards(self, parts):
    """Pulls tensors like `shards`, each on its ps; returns whole ones."""
    devices = [shard.device for shard in self.shards]
    left, whole = self._wire.to_worker(parts, devices), []
    with tf.device(self._device):
      for view, shards in zip(self.views, self._shards_of, strict=True):
        whole.append(join(left[: len(shards)], view.shape))
        del left[: len(shards)]
    return whole

  def to_shards(self, tensors):
    """Cuts whole tensors as the center is cut and pushes the parts.

    Returns:
      The list of (part on its shard's ps, shard), as `apply_gradients` takes
      it.
    """
    parts = []
    with tf.device(self._device):
      for tensor, shards in zip(tensors, self._shards_of, strict=True):
        if len(shards) > 1:
          axis = find_cut(shards[0], tensor.shape)
          parts += tf.split(tensor, [s.shape[axis] for s in shards], axis)
        else:
          parts.append(tf.convert_to_tensor(tensor))
    shards = self.shards
    arrived = self._wire.to_ps(parts, [shard.device for shard in shards])
    return list(zip(arrived, shards, strict=True))

  def compute_gradients(self, optimizer, loss):
    """Returns the list of g^i, the gradients of `loss` by the views."""
    pairs = optimizer.compute_gradients(
      loss, self.views, colocate_gradients_with_ops=self._has_towers
    )
    return [
      # What the loss does not depend on has none.
      tf.zeros(view.shape, view.dtype) if gradient is None else gradient
      for (gradient, _), view in zip(pairs, self.views, strict=True)
    ]


def join(values, shape):
  """Returns the whole of `shape`, of which `values` are the shards."""
  if len(values) == 1:
    return values[0]
  return tf.concat(values, find_cut(values[0], shape))


def find_cut(shard, shape):
  """Returns the axis along which the first shard was cut from `shape`."""
  return next(i for i, n in enumerate(shard.shape) if n != shape[i])
