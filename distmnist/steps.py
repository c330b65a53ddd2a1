"""What a session.run runs: one training step or several, and no more than due.

A session.run costs about as much as a step of a small net: Python, the
session's lock, a message to each ps and back. Two things make it rarer, and
neither changes what a rule computes:

- With --steps_per_run=K the graph of a step is copied K - 1 times, and each
  copy begins when the step before it has ended. Every step pulls and pushes as
  it did; but the hooks (stop, checkpoint, summary) look up only after K steps.
  Where a step ends on a ps, as an asynchronous one does, the next begins there
  without a word to the worker, who hears of all K of them at the end.
- A rule that speaks with the center in every T-th step alone has copies of the
  step without the exchange. No op of theirs is on a ps. With the exchange in a
  tf.cond, as it is in the step itself, each step costs the messages of one that
  exchanges: the branch that is not taken sends and receives, too.
"""

import math
import zlib
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import fed_rows, local_copies, wire

_STEPS_PER_RUN = flags.DEFINE_integer(
  'steps_per_run',
  1,
  'Training steps in one session.run: more is faster where a step is short. '
  'Checkpoints, summaries and signals wait for its end; the last steps of a '
  'training are run one by one. Each is a copy in the graph, so that hundreds '
  'take minutes to start.',
  lower_bound=1,
  upper_bound=1000,
)
# The runs differ in the exchanges that are due in them. Where periods make more
# kinds of runs than this, the steps look for themselves what is due.
_MAX_CYCLE = 10_000


class _Step(NamedTuple):
  """The tensors of one step: of each, of a run's last alone, and the count."""

  tensors: dict
  of_last: dict
  count: tf.Tensor | None


class _Run:
  """What a session.run runs: the steps of `chain`, and their numbers."""

  def __init__(self, chain, rehearsal=None):
    """
    Args:
      chain: list of _Step, one after the other.
      rehearsal: rehearsal.Rehearsal, in which the numbers are zeros, or None.
    """
    self.chain = chain
    numbers = [x for step in chain for x in step.tensors.values()]
    numbers += chain[-1].of_last.values()
    count = chain[-1].count
    self._numbers = wire.Numbers(
      numbers if count is None else [*numbers, count]
    )
    self.fetches = self._numbers.fetches
    if rehearsal:
      self.fetches = [rehearsal.or_zeros(x) for x in self.fetches]

  def unpack(self, values):
    """Returns ([{name: number} of each step], count or None)."""
    numbers = iter(self._numbers.unpack(values))
    done = [{name: next(numbers) for name in x.tensors} for x in self.chain]
    done[-1] |= {name: next(numbers) for name in self.chain[-1].of_last}
    return done, next(numbers, None)


class _Endless:
  """Stands for the source of batches where a step needs none."""

  left = math.inf

  def make_feed(self, num_batches):
    del num_batches
    return {}

  make_blank_feed = make_feed

  def note(self, global_steps):
    pass


class Steps(tf.train.SessionRunHook):
  """Has each session.run do what is due, and keeps what came of it.

  The loop itself asks for nothing: `session.run([])`. What is due is chosen in
  `before_run`, so that a run that a recovered session tries again is chosen
  anew. Hooks that come after this one read here what it chose and, of the
  numbers of the steps, what it fetched: all of a run at once, in few tensors.

  Attributes:
    done: list of {name: number}, of each step of the last session.run.
  """

  def __init__(
    self,
    tensors,
    num_steps=1,
    source=None,
    exchanges=(),
    of_last=None,
    rehearsal=None,
  ):
    """
    Args:
      tensors: {name: scalar tensor} of one step; `global_step` is the train_op.
      num_steps: int, K.
      source: object that knows how many steps there may be and feeds them, such
        as batch_source.BatchSource; None feeds nothing and has no end.
      exchanges: list of local_copies.Exchange in the step.
      of_last: {name: scalar tensor} of one step, of which those of the last
        step of a run are enough.
      rehearsal: rehearsal.Rehearsal of the step, or None.
    """
    self.done = []
    self._source = source or _Endless()
    # What an assignment returns is no tensor yet, and could not be copied.
    first = _Step(
      {n: tf.convert_to_tensor(x) for n, x in tensors.items()},
      of_last or {},
      exchanges[0].step if exchanges else None,
    )
    copier = _Copier(first, tf.get_collection(fed_rows.COLLECTION))

    def build_run(left_out, name):
      chain = copier.build_chain(left_out, name)
      with tf.name_scope(name):
        return _Run(chain, rehearsal)

    self._periods = [exchange.period for exchange in exchanges]
    self._num_steps = num_steps
    self._runs = {}
    for number, due in enumerate(self._find_runs()):
      left_out = [
        [e for e, is_due in zip(exchanges, of_step, strict=True) if not is_due]
        for of_step in due
      ]
      self._runs[due] = build_run(left_out, f'run_{number + 1}')
    # Of steps that look for themselves what is due.
    self._general = {1: build_run([()], 'step')}
    if num_steps > 1 and not self._runs:
      self._general[num_steps] = build_run([()] * num_steps, 'steps')
    self._known_count = self._now = None

  @property
  def last(self):
    """The {name: number} of the last step of the last session.run."""
    return self.done[-1]

  def all_now(self):
    """Returns the {name: tensor} of each step of the chosen run."""
    return [step.tensors for step in self._now.chain]

  def find_all_runs(self):
    """Returns [(fetches, feed_dict)] of each kind of run, fed with zeros."""
    runs = [*self._general.values(), *self._runs.values()]
    return [
      (run.fetches, self._source.make_blank_feed(len(run.chain)))
      for run in runs
    ]

  def know(self, step):
    """Notes the global_step of now, which is later than that of the run."""
    if self.done:
      self.done[-1]['global_step'] = step

  def know_count(self, count):
    """Notes how many steps of its own the worker did in this session."""
    self._known_count = count

  def after_create_session(self, session, coord):
    # The worker's own count begins anew with the session.
    self._known_count = None

  def before_run(self, run_context):
    self._now = self._choose()
    feed = self._source.make_feed(len(self._now.chain))
    return tf.train.SessionRunArgs(self._now.fetches, feed)

  def after_run(self, run_context, run_values):
    self.done, self._known_count = self._now.unpack(run_values.results)
    self._source.note([step['global_step'] for step in self.done])

  def _choose(self):
    """Returns the _Run that is due."""
    is_long = self._source.left >= self._num_steps
    num_steps, due = self._num_steps if is_long else 1, None
    if self._periods and (self._known_count or 0) % num_steps:
      num_steps = 1  # Up to where runs begin.
    if self._runs:
      # Who does not know its count has the step look for itself.
      if self._known_count is None:
        num_steps = 1
      else:
        due = self._find_due(self._known_count, num_steps)
    return self._runs.get(due) or self._general[num_steps]

  def _find_due(self, count, num_steps):
    """Returns, for each step after `count` steps, which exchanges are due."""
    return tuple(
      tuple(number % period == 0 for period in self._periods)
      for number in range(count + 1, count + 1 + num_steps)
    )

  def _find_runs(self):
    """Returns the set of what can be due in a run, of one step and of K."""
    cycle = math.lcm(self._num_steps, *self._periods)
    if not self._periods or cycle > _MAX_CYCLE:
      return []
    return sorted(
      {
        self._find_due(count, length)
        for length in {1, self._num_steps}
        for count in range(0, cycle, length)
      }
    )


def steps_per_run_from_flags():
  return _STEPS_PER_RUN.value


def make(tensors, source, of_last, rehearsal):
  """Returns the Steps that --steps_per_run asks for, of the default graph."""
  return Steps(
    tensors,
    _STEPS_PER_RUN.value,
    source,
    tf.get_collection(local_copies.EXCHANGES),
    of_last,
    rehearsal,
  )


def repeat(op, times, device):
  """Returns an op that does `op` so many times, one after the other.

  Args:
    op: tf.Operation.
    times: int.
    device: str, where an end of `op` is followed by the next start.
  """
  with tf.control_dependencies([op]), tf.device(device):
    first = _Step({'global_step': tf.constant(0)}, {}, None)
  chain = _Copier(first).build_chain([()] * times, op.name)
  return chain[-1].tensors['global_step'].op


class _Ends:
  """What the first ops of a step wait for: the end of the step before it."""

  def __init__(self, step):
    """
    Args:
      step: _Step, the one before.
    """
    ops = [tensor.op for tensor in step.tensors.values()]
    self._last = step.tensors['global_step'].op
    self._on_ps = [op for op in ops if wire.is_on_ps(op)]
    self._on_worker = [op for op in ops if not wire.is_on_ps(op)]
    self._all = None

  def find(self, op):
    """Returns the list of ops for `op` of the next step to wait for."""
    # What reads a variable goes where it is.
    home = op if op.device or not op.inputs else op.inputs[0]
    if not wire.is_on_ps(home):
      return self._on_worker or self._on_ps
    if wire.is_on_ps(self._last):
      return [self._last]
    return [self._gather()]

  def _gather(self):
    """Returns an op on the worker, or each end would be a message to a ps."""
    if self._all is None:
      ops = self._on_worker + self._on_ps
      with tf.device(ops[0].device), tf.control_dependencies(ops):
        self._all = tf.no_op('end')
    return self._all


class _Copier:
  """Makes copies of a step that come one after the other."""

  def __init__(self, first, batches=()):
    """
    Args:
      first: _Step.
      batches: list of fed_rows.FedRows; of each, step i of a run has row
        i.
    """
    self._first = first
    self._batches = batches
    self._parts = {}

  def build_chain(self, left_out, name):
    """Builds steps that come one after the other.

    Args:
      left_out: list of lists of local_copies.Exchange, one a step.
      name: str, the prefix of their ops.

    Returns:
      List of _Step; the first one is the given step itself if it leaves
      nothing out.
    """
    chain = []
    for number, exchanges in enumerate(left_out):
      if chain or exchanges:
        before = chain[-1] if chain else None
        chain.append(
          self._copy(before, exchanges, f'{name}_{number + 1}', number)
        )
      else:
        chain.append(self._first)
    return chain

  def _copy(self, before, left_out, name, number):
    """Copies the ops of the step, to be run after another one.

    What holds a state (a variable, a queue, an iterator) is not copied. A
    random op has a state as well, its place in the sequence of its seeds: the
    copy draws from a sequence of its own, or all the steps of a run would drop
    the same units.

    Args:
      before: _Step, or None.
      left_out: list of local_copies.Exchange that are not to be done.
      name: str, the prefix of the copies.
      number: int, which step of its run this is.
    """
    key = tuple(map(id, left_out))
    if key not in self._parts:
      self._parts[key] = self._cut_out(left_out)
    part, wanted, shared = self._parts[key]
    for node in part.node:
      # Without seeds (0 and 0) TensorFlow draws some for each op.
      if 'seed2' in node.attr and (node.attr['seed'].i or node.attr['seed2'].i):
        node.attr['seed2'].i = zlib.crc32(f'{name}/{node.name}'.encode())
    names = [node.name for node in part.node]
    rows = {
      batches.row.name: fed_rows.find_row(batches.fed, number)
      for batches in self._batches
      if batches.row.op.name in names
    }
    with tf.device(None):
      found = tf.import_graph_def(
        part,
        input_map=shared | rows,
        return_elements=[*wanted, *names],
        name=name,
      )
    if before:
      with tf.name_scope(name):
        ends = _Ends(before)
      for op in found[len(wanted) :]:
        # A variable or a queue is no step's own.
        is_first = all(x.dtype == tf.resource for x in op.inputs)
        if is_first and not op.control_inputs:
          op._add_control_inputs(ends.find(op))
    step, copies = self._first, iter(found)
    return _Step(
      {name: next(copies) for name in step.tensors},
      {name: next(copies) for name in step.of_last},
      None if step.count is None else next(copies),
    )

  def _cut_out(self, left_out):
    """Returns the step without some of its exchanges.

    Returns:
      (part, wanted, shared): its GraphDef, the names of its tensors, and what
      it shares with its copies as {name: tensor}.
    """
    graph, step = tf.get_default_graph(), self._first
    whole = graph.as_graph_def()
    instead = {
      output.op.name: other.op.name
      for exchange in left_out
      for output, other in zip(exchange.outputs, exchange.without, strict=True)
    }
    for node in whole.node:
      for i, word in enumerate(node.input):
        mark, op_name = '^' * word.startswith('^'), word.lstrip('^')
        if op_name in instead:
          node.input[i] = mark + instead[op_name]
    tensors = [*step.tensors.values(), *step.of_last.values()]
    if step.count is not None:
      tensors.append(step.count)
    wanted = [
      f'{instead.get(tensor.op.name, tensor.op.name)}:{tensor.value_index}'
      for tensor in tensors
    ]
    part = tf.graph_util.extract_sub_graph(
      whole, [word.partition(':')[0] for word in wanted]
    )
    shared = {}
    for node in part.node:
      # Where an op goes is decided, and its like of the first step elsewhere.
      node.attr.pop('_class', None)
      outputs = graph.get_operation_by_name(node.name).outputs
      if any(output.dtype == tf.resource for output in outputs):
        shared |= {output.name: output for output in outputs}
    return part, wanted, shared
