"""What `tf.get_variable` gives a model: views of variables on the ps.

A trained variable is made on the ps, in shards as usual; what the model gets in
its place is up to the subclass. Untrained variables stay as they are. So do
those in the collection variable_lists.IN_PLACE: the model computes with them
where they are (hidden.split_dense).
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.common import graph_record
from distmnist.tables import sparse_table
from distmnist.transport import variable_lists


class ModelVariables:
  """The variables of a model that is built inside `scope()`.

  Attributes:
    views: list of what the model gets in place of the center's variables; the
      shards that stay in place come last, each its own view.
    shards: list of tf.Variable, on the ps.
    rows: table_rows.Rows, of the sparse tables.
  """

  _keeps_in_place = True
  # Whether a step pulls what it does not push.
  _pulls_unmoved = True

  def __init__(self, rows):
    self.rows = rows
    self._names = []
    self._given = []
    self._pulled = []
    self._in_place = []
    self._pulled_only = []

  def _make_view(self, center, shards, name):
    """Returns what the model gets in place of a variable.

    Args:
      center: tf.Variable or PartitionedVariable, the whole variable.
      shards: list of tf.Variable, its parts.
      name: str.
    """
    raise NotImplementedError

  def _connect_views(self):
    """Gives views and rows their values, at the end of the scope."""
    raise NotImplementedError

  @contextlib.contextmanager
  def scope(self):
    """The variable scope in which the model is built."""
    with tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    ):
      yield
    self._connect_views()

  def _get_variable(self, getter, name, *args, **kwargs):
    collections = list(kwargs.get('collections') or ())
    if sparse_table.TABLES in collections:
      return self.rows.get(getter, name, *args, **kwargs)
    stays = self._keeps_in_place and variable_lists.IN_PLACE in collections
    if variable_lists.IN_PLACE in collections and not stays:
      collections.remove(variable_lists.IN_PLACE)
      kwargs['collections'] = collections
    if not kwargs.get('trainable', True):
      # Its updates need it whole; see transport/model_state.py.
      return getter(name, *args, **{**kwargs, 'partitioner': None})
    center = getter(name, *args, **kwargs)
    if name in self._names:  # Another tower: it shares the first's view.
      return self._given[self._names.index(name)]
    given, shards = center, [center] if tf.is_tensor(center) else list(center)
    if stays:
      self._in_place += shards
    else:
      given = self._make_view(center, shards, name)
      self._pulled.append((given, shards))
    self._names.append(name)
    self._given.append(given)
    return given

  def _leave_out(self, views):
    """Takes `views`, a list that nothing moves, and their shards out of all."""
    ids = {id(view) for view in views}
    whole = [shards for view, shards in self._pulled if id(view) in ids]
    unmoved = [shard for shards in whole for shard in shards]
    self._pulled = [x for x in self._pulled if id(x[0]) not in ids]
    self._in_place = [x for x in self._in_place if id(x) not in ids]
    if self._pulls_unmoved:
      self._pulled_only = unmoved
    for shard in unmoved:
      graph_record.of(tf.get_default_graph()).not_pushed.append(shard)
      if not self._pulls_unmoved:
        graph_record.of(tf.get_default_graph()).not_pulled.append(shard)

  @property
  def views(self):
    return [view for view, _ in self._pulled] + self._in_place

  @property
  def shards(self):
    return self._pulled_shards + self._in_place

  @property
  def _pulled_shards(self):
    return [shard for _, shards in self._pulled for shard in shards]
