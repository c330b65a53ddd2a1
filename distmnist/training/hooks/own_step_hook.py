"""The global step of a loop that may fetch anything in each run."""

import tensorflow.compat.v1 as tf


class OwnStepHook(tf.train.SessionRunHook):
  """Knows the global step after each of the script's runs.

  Attributes:
    last: dict, 'global_step': int.
  """

  def __init__(self, train_op, global_step):
    self._train_op = train_op
    self._read = global_step.read_value()
    self._known = {}
    self.last = {}

  def before_run(self, run_context):
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
