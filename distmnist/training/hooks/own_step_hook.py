"""The runs of a loop that may fetch anything: their step, and what they begin.

A lost ps breaks the session of every worker, and a new one follows. What the
script keeps on its own worker then goes on as own_state.py says.
"""

import tensorflow.compat.v1 as tf


class OwnStepHook(tf.train.SessionRunHook):
  """Knows the global step after each of the script's runs.

  Attributes:
    last: dict, 'global_step': int.
  """

  def __init__(self, train_op, global_step, own_state=None):
    """
    Args:
      train_op: int64 scalar tensor, makes a step and gives the one after it.
      global_step: int64 scalar variable.
      own_state: own_state.OwnState, or None.
    """
    self._train_op = train_op
    self._own_state = own_state
    self._read = global_step.read_value()
    self._known = {}
    self.last = {}

  def after_create_session(self, session, coord):
    if self._own_state:
      self._own_state.begin_session(session)

  def before_run(self, run_context):
    if self._own_state:
      self._own_state.note_run(run_context.original_args)
    fetched = tf.nest.flatten(
      run_context.original_args.fetches, expand_composites=True
    )
    ops = [self._train_op.graph.as_graph_element(x) for x in fetched]
    # A run that trains returns the step that it made; a separate read in it
    # would come too early.
    trains = any(self._trains(getattr(op, 'op', op)) for op in ops)
    return tf.train.SessionRunArgs(self._train_op if trains else self._read)

  def after_run(self, run_context, run_values):
    self.last['global_step'] = int(run_values.results)

  def _trains(self, op):
    """Whether running `op` (tf.Operation) makes a step."""
    if op not in self._known:
      self._known[op] = self._train_op.op in find_run(op)
    return self._known[op]


def find_run(op):
  """Returns the set of tf.Operation that running `op` runs, with itself."""
  seen, left = {op}, [op]
  while left:
    last = left.pop()
    before = {x.op for x in last.inputs} | {*last.control_inputs}
    left += before - seen
    seen |= before
  return seen
