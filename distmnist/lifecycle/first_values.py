"""The initial values of a session's variables.

The chief takes over a live center: if it comes back, it must not undo what the
others have trained. Otherwise it restores the last checkpoint, or initialises
if there is none. Without a ps the other workers initialise values of their own,
and get the chief's from the strategy; once any worker has made steps, all go on
with its values, and nothing is restored.
"""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoint_reader, checkpoints
from distmnist.tables import (
  first_rows,
  key_map,
  sparse_table,
  touched_rows,
)
from distmnist.transport import fed_initial_values, strategy

if TYPE_CHECKING:
  from distmnist.lifecycle import center_flags as center_flags_lib
  from distmnist.lifecycle import task as task_lib
  from distmnist.logdir import restart as restart_lib

_log = logging.getLogger(__name__)


class FirstValues:
  """Takes over, restores or initialises the variables of a worker."""

  def __init__(
    self,
    task: task_lib.Task,
    restart: restart_lib.Restart,
    center_flags: center_flags_lib.CenterFlags | None,
    hooks: Sequence[tf.train.SessionRunHook],
  ) -> None:
    """
    Args:
      restart: finds what the chief restores.
      center_flags: None where there is no ps.
      hooks: any strategy.CenterHook among them is called for each new center.
    """
    self._task, self._cluster = task, task.cluster
    self._restart = restart
    self._center_flags = center_flags
    self._hooks = hooks
    self._member = strategy.find_member(hooks)
    self._initializers = tf.global_variables_initializer()
    self._clear_touched = touched_rows.build_clear_all()
    if self._cluster.is_chief:
      self._restorer = restoring.Restorer(device=self._cluster.cpu_device)

  def set_in(self, scaffold: tf.train.Scaffold, session: tf.Session) -> None:
    """Gives the variables their values; the init_fn of `scaffold`."""
    with errors.naming_losses():
      self._set_in(scaffold, session)

  def _set_in(self, scaffold: tf.train.Scaffold, session: tf.Session) -> None:
    member = self._member
    if member and member.is_given:
      if not member.has_values:
        # They are set once the session is made.
        self._initialize(session)
      if self._cluster.is_chief:
        self._restart.go_on()
      return
    if not self._cluster.is_chief:
      self._initialize(session, self._load_first(session)[0])
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
        lacking = self._restorer.restore(session, path)
      except checkpoint_reader.DamageError as error:
        # It was whole when it was found: the next start finds what is wrong.
        raise cli.PassingError(str(error)) from error
      session.run([v.initializer for v in lacking])
      rows = None
      self._task.history.write('restored', step=step)
      _log.info(f'restored {path}')
    else:
      values, rows = self._load_first(session)
      self._check_first_rows(session, rows)
      self._initialize(session, values)
    self._restart.go_on()
    for hook in self._hooks:
      if isinstance(hook, strategy.CenterHook):
        hook.on_new_center(session)
    key_map.fill(session)
    session.run(self._clear_touched)
    if rows is not None:
      with _reading():
        first_rows.put_all(session, rows, self._task.stalls.goes_on)
    if self._center_flags:
      self._center_flags.raise_all(session, self._restart.run)

  def _check_first_rows(
    self, session: tf.Session, sources: Mapping[str, first_rows.Source]
  ) -> None:
    """Raises cli.UsageError if rows that a table is given are wrong.

    Here, as the others wait for the variables as long as this chief beats.
    """
    try:
      first_rows.check_all(session.graph, sources, self._task.stalls.goes_on)
    except ValueError as error:
      raise cli.UsageError(str(error)) from error

  def _load_first(
    self, session: tf.Session
  ) -> tuple[dict[str, np.ndarray], dict[str, first_rows.Source]]:
    with session.graph.as_default(), _reading():
      return fed_initial_values.load_first()

  def _initialize(
    self,
    session: tf.Session,
    first: Mapping[str, np.ndarray] = types.MappingProxyType({}),
  ) -> None:
    with session.graph.as_default():
      given = fed_initial_values.make_feed(first)
      has_tables = bool(tf.get_collection(sparse_table.TABLES))
    server = self._task.server
    if not (has_tables and self._cluster.num_ps and server):
      session.run(self._initializers, given)
      return
    # An open session keeps the constants that slots begin with. They share
    # memory with the variables, so the first row that is read would copy the
    # whole table.
    config = self._task.session_config
    with tf.Session(server.target, session.graph, config) as passing:
      passing.run(self._initializers, given)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
  """Lets even a first attempt begin again if another run's checkpoint is gone.

  It was whole when it was found, and that run goes on: the next attempt finds
  a later one.

  Raises:
    cli.PassingError: in place of a DamageError of one that is gone.
    DamageError: its files are there, and are damaged: no attempt can read it.
  """
  try:
    yield
  except checkpoint_reader.DamageError as error:
    if not error.is_gone:
      raise
    passing = cli.PassingError(str(error))
    passing.is_amid_run = True
    raise passing from error
