"""Several training steps in one session.run.

A session.run costs about as much as a step of a small net: Python, the
session's lock, a message to each ps and back. With --steps_per_run=K the graph
of a step is copied K - 1 times, and each copy begins when the step before it
has ended. Every step pulls and pushes as it did, so nothing of a rule changes;
but the hooks (stop, checkpoint, summary) look up only after K steps.
"""

import tensorflow.compat.v1 as tf
from absl import flags

_STEPS_PER_RUN = flags.DEFINE_integer(
  'steps_per_run',
  1,
  'Training steps in one session.run: more is faster where a step is short. '
  'Checkpoints, summaries and signals wait for its end; the last steps of a '
  'training are run one by one.',
  lower_bound=1,
)


class Steps(tf.train.SessionRunHook):
  """What a session.run runs, and what a hook can fetch of it."""

  def __init__(self, tensors, num_steps=1, last_step=0, num_workers=1):
    """
    Args:
      tensors: {name: scalar tensor} of one step; `global_step` is the train_op.
      num_steps: int, K.
      last_step: int, the global step at which training ends.
      num_workers: int, who all count global steps.
    """
    # What an assignment returns is no tensor yet, and could not be copied.
    tensors = {n: tf.convert_to_tensor(x) for n, x in tensors.items()}
    self._steps = [tensors]
    for i in range(1, num_steps):
      before = self._steps[-1].values()
      self._steps.append(_copy(tensors, before, f'step_{i + 1}'))
    # All may count to the end at the same time, and none shall go past it. (One
    # that is held up between two runs knows an old step: with asynchronous
    # rules the end may then come up to a run late.)
    self._last_long_start = last_step - num_steps * num_workers
    self._known_step = None
    self._num_now = 1

  def choose(self):
    """Returns what the next session.run is to run."""
    is_long = (
      self._known_step is not None and self._known_step <= self._last_long_start
    )
    self._num_now = len(self._steps) if is_long else 1
    return self._steps[self._num_now - 1]['global_step']

  def now(self, name):
    """Returns the tensors called `name` of the steps that are run now."""
    return [tensors[name] for tensors in self.all_now()]

  def all_now(self):
    """Returns the {name: tensor} of each step that is run now."""
    return self._steps[: self._num_now]

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(self.now('global_step')[-1])

  def after_run(self, run_context, run_values):
    self._known_step = int(run_values.results)


def make(tensors, last_step, num_workers):
  """Returns the Steps that --steps_per_run asks for."""
  return Steps(tensors, _STEPS_PER_RUN.value, last_step, num_workers)


def _copy(tensors, before, name):
  """Copies the ops that `tensors` need, to be run once `before` is there.

  What holds a state (a variable, a queue, an iterator) is not copied.
  """
  graph = tf.get_default_graph()
  whole = graph.as_graph_def()
  wanted = [tensor.op.name for tensor in tensors.values()]
  step = tf.graph_util.extract_sub_graph(whole, wanted)
  shared = {}
  for node in step.node:
    # Where an op goes is decided, and its like of the first step is elsewhere.
    node.attr.pop('_class', None)
    outputs = graph.get_operation_by_name(node.name).outputs
    if any(output.dtype == tf.resource for output in outputs):
      shared |= {output.name: output for output in outputs}
  with tf.control_dependencies(list(before)), tf.device(None):
    copies = tf.import_graph_def(
      step,
      input_map=shared,
      return_elements=[tensor.name for tensor in tensors.values()],
      name=name,
    )
  return dict(zip(tensors, copies, strict=True))
