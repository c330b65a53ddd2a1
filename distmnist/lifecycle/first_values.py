"""The initial values of a session's variables.

The chief takes over a live center: if it comes back, it must not undo what the
others have trained. Otherwise it restores the last checkpoint, or initialises
if there is none. Without a ps the other workers initialise values of their own,
and get the chief's from the strategy; once any worker has made steps, all go on
with its values, and nothing is restored.
"""

import logging

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.lifecycle import restorable
from distmnist.logdir import (
  checkpoint_reads,
  checkpoints,
  other_names,
)
from distmnist.tables import key_map, sparse_table, table_saver, touched_rows
from distmnist.transport import fed_initial_values, strategy

_log = logging.getLogger(__name__)


class FirstValues:
  """Takes over, restores or initialises the variables of a worker."""

  def __init__(self, task, restart, center_flags, hooks):
    """
    Args:
      task: task.Task.
      restart: restart.Restart, which finds what the chief restores.
      center_flags: center_flags.CenterFlags, or None where there is no ps.
      hooks: list of SessionRunHook; any strategy.CenterHook among them is
        called for each new center.
    """
    self._task, self._cluster = task, task.cluster
    self._restart = restart
    self._center_flags = center_flags
    self._hooks = hooks
    self._member = strategy.find_member(hooks)
    self._initializers = tf.global_variables_initializer()
    # What a checkpoint may lack, or have under another name.
    self._optional = [
      *graph_record.current().optional,
      *other_names.choose(tf.global_variables()),
    ]
    self._needed = [
      v
      for v in tf.global_variables()
      if not any(v is x for x in self._optional)
    ]
    self._saver_of_needed = None
    self._clear_touched = touched_rows.build_clear_all()
    if self._optional and self._cluster.is_chief:
      self._saver_of_needed = table_saver.TableSaver(
        self._cluster.cpu_device, variables=self._needed
      )

  def set_in(self, scaffold, session):
    """Gives the variables their values; the init_fn of `scaffold`."""
    with errors.naming_losses():
      self._set_in(scaffold, session)

  def _set_in(self, scaffold, session):
    member = self._member
    if member and member.is_given:
      if not member.has_values:
        self._initialize(session)  # They are set once the session is made.
      if self._cluster.is_chief:
        self._restart.go_on()
      return
    if not self._cluster.is_chief:
      self._initialize(session)
      return
    is_live = not session.run(scaffold.ready_for_local_init_op).size
    # Without a ps they are what an attempt to restore them has left.
    if is_live and not member:
      if self._center_flags:
        self._center_flags.check_run(session, self._restart.run)
      _log.info('taking over the live variables')
      self._restart.go_on()
      return
    path = self._restart.find()
    if path:
      step = checkpoints.parse_step(path)
      self._task.history.write('restoring', step=step)
      try:
        self._restore(scaffold, session, path)
      except checkpoint_reads.DamageError as error:
        # It was whole when it was found: the next start finds what is wrong.
        raise cli.PassingError(str(error)) from error
      self._task.history.write('restored', step=step)
      _log.info(f'restored {path}')
    else:
      self._initialize(session)
    self._restart.go_on()
    for hook in self._hooks:
      if isinstance(hook, strategy.CenterHook):
        hook.on_new_center(session)
    key_map.fill(session)
    session.run(self._clear_touched)
    if self._center_flags:
      self._center_flags.raise_all(session, self._restart.run)

  def _initialize(self, session):
    with session.graph.as_default():
      given = fed_initial_values.make_feed()
      has_tables = bool(tf.get_collection(sparse_table.TABLES))
    server = self._task.server
    if not (has_tables and self._cluster.num_ps and server):
      session.run(self._initializers, given)
      return
    # An open session keeps the constants that slots begin with. They share
    # memory with the variables, so the first row that is read would copy the
    # whole table.
    config = self._task.session_config
    with tf.Session(server.target, session.graph, config) as first:
      first.run(self._initializers, given)

  def _restore(self, scaffold, session, path):
    """Restores `path`; what it may lack, and lacks, stays initialised."""
    if not self._saver_of_needed or checkpoints.has_all(path, self._optional):
      variables = tf.global_variables()
      local = restorable.localize(path, session.graph, variables)
      restorable.load(path, session, scaffold.saver, local)
      return
    self._initialize(session)
    lost = other_names.choose_lost(path, self._optional)
    local = restorable.localize(path, session.graph, self._needed + lost)
    restorable.load(path, session, self._saver_of_needed, local)
    other_names.load(session, local, self._optional)
