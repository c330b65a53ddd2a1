"""What `tf.get_variable` gives a model: views of variables on the ps.

A variable that is trained is made on the ps, in shards as ever; what the model
gets in its place is up to the class that inherits from this one. Variables that
are not trained stay what they are. Those in the collection IN_PLACE do so, too:
the model computes with them where they are (layers.split_dense).
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import sparse_table

IN_PLACE = 'distmnist/in_place'


class ModelVariables:
  """The variables of a model that is built inside `scope()`.

  Attributes:
    views: list of what the model has in place of the center's variables; at the
      end are the shards that stay in place, each its own view.
    shards: list of tf.Variable, on the ps.
    rows: table_rows.Rows, of the sparse tables.
  """

  _keeps_in_place = True

  def __init__(self, rows):
    self.rows = rows
    self._names = []
    self._given = []
    self._pulled = []
    self._in_place = []

  def _make_view(self, center, shards, name):
    """Returns what the model gets in place of a variable.

    Args:
      center: tf.Variable or PartitionedVariable, the whole of it.
      shards: list of tf.Variable, of which it is made.
      name: str.
    """
    raise NotImplementedError

  def _connect_views(self):
    """Ends the scope: all views are made."""
    raise NotImplementedError

  @contextlib.contextmanager
  def scope(self):
    """The variable scope in which the model is built."""
    with tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    ):
      yield
    self._connect_views()
    self.rows.connect()

  def _get_variable(self, getter, name, *args, **kwargs):
    collections = list(kwargs.get('collections') or ())
    if sparse_table.TABLES in collections:
      return self.rows.get(getter, name, *args, **kwargs)
    stays = self._keeps_in_place and IN_PLACE in collections
    if IN_PLACE in collections and not stays:
      collections.remove(IN_PLACE)
      kwargs['collections'] = collections
    if not kwargs.get('trainable', True):
      # What changes it has it whole; see exchange/model_state.py.
      return getter(name, *args, **{**kwargs, 'partitioner': None})
    center = getter(name, *args, **kwargs)
    if name in self._names:  # Another tower: it has the view of the first.
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

  @property
  def views(self):
    return [view for view, _ in self._pulled] + self._in_place

  @property
  def shards(self):
    return self._pulled_shards + self._in_place

  @property
  def _pulled_shards(self):
    return [shard for _, shards in self._pulled for shard in shards]
