"""What the oracles of the rules have in common, in NumPy, slowly.

The oracle of a rule stands in the rule's own test, written as its docstring
says. Here is what flags add to all of them: optimizers of the center and of
the workers that differ, a rate that falls with the global step, clipping, a
Hessian that is not the identity, and a wire that may round to bfloat16. Nothing
here is the package's.
"""

import numpy as np

SIZE = 5
HESSIAN = [1.0, 0.5, 2.0, 0.25, 1.5]
# Momentum on the center, plain steps here; both rates halve at these steps.
BOUNDARIES = (2, 5)
FLAGS = (
  '--optimizer=momentum',
  '--momentum=0.9',
  '--learning_rate=0.1',
  '--local_optimizer=sgd',
  '--local_learning_rate=0.3',
  '--clip_norm=2.0',
  '--lr_schedule=step',
  f'--lr_boundaries={",".join(map(str, BOUNDARIES))}',
  '--lr_decay_rate=0.5',
)
# What these flags and HESSIAN are to an oracle.
FLAGGED = {
  'momentum': 0.9,
  'rate': 0.1,
  'local_momentum': 0,
  'local_rate': 0.3,
  'clip_norm': 2.0,
  'boundaries': BOUNDARIES,
  'hessian': np.array(HESSIAN),
}


def round_to_bfloat16(x):
  """Returns float64 `x` as bfloat16 has it: to the nearest, ties to even."""
  bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
  bits += 0x7FFF + ((bits >> 16) & 1)
  return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)


WIRES = {'float32': lambda x: x, 'bfloat16': round_to_bfloat16}


class Optimizer:
  """Gradient descent with momentum, of one vector; the rate may fall."""

  def __init__(self, rate, momentum=0, boundaries=()):
    """
    Args:
      rate, momentum: float.
      boundaries: tuple of int; at each of these steps the rate halves.
    """
    self.rate, self._momentum = rate, momentum
    self._boundaries = boundaries
    self.forget()

  def forget(self):
    self._velocity = 0

  def __call__(self, x, g, step=0, factor=1):
    """Returns `x` after a step along `g`, at global step `step`."""
    self._velocity = self._momentum * self._velocity + g
    num_passed = sum(step >= boundary for boundary in self._boundaries)
    return x - self.rate * 0.5**num_passed * factor * self._velocity


class Oracle:
  """Workers that begin (a gradient) and end (all that follows); all from 0.

  Attributes:
    center: float array, x~.
    copies: list of float arrays, x^i: what the model of worker i sees.
    step: int, the global_step.
    unsent: list, what worker i has for a later push; lost with it.
    keeps_copies: whether copies outlive a step.
    waits: whether a step may end only with one of another worker.
  """

  keeps_copies = True
  waits = False

  def __init__(
    self,
    num_workers=2,
    rate=0.5,
    momentum=0,
    local_rate=None,
    local_momentum=None,
    boundaries=(),
    clip_norm=np.inf,
    hessian=1,
    wire_dtype='float32',
  ):
    """What is not given of the local optimizers is as the center's."""
    self.wire = WIRES[wire_dtype]
    self.num_workers, self._hessian = num_workers, hessian
    self._clip_norm = clip_norm
    self.optimizer = Optimizer(rate, momentum, boundaries)
    self.local_optimizers = [
      Optimizer(
        rate if local_rate is None else local_rate,
        momentum if local_momentum is None else local_momentum,
        boundaries,
      )
      for _ in range(num_workers)
    ]
    self.center, self.step = np.zeros(SIZE), 0
    self.copies = [self.center] * num_workers
    self.pulled = [self.center] * num_workers
    self.pulled_step = [0] * num_workers
    self.known_step = [0] * num_workers
    self.local_steps, self.unsent = [0] * num_workers, [0] * num_workers
    self.gradients, self.begun = [None] * num_workers, [0] * num_workers

  def begin(self, i, x):
    """Computes the gradient of worker `i` for `x`, where its copy is."""
    g = self._hessian * (self.copies[i] - x)
    self.gradients[i] = g * min(1, self._clip_norm / np.linalg.norm(g))
    self.begun[i] = self.step

  def end(self, i):
    """Returns {worker: (global_step, staleness)} of the steps that ended."""
    raise NotImplementedError

  def start_anew(self, i, x):
    """What worker `i` did on its own is lost; its copy is `x`, an array."""
    self.local_steps[i] = self.unsent[i] = 0
    self.local_optimizers[i].forget()
    self.pull(i)
    self.copies[i] = self.pulled[i] = x

  def step_locally(self, i):
    """Moves the copy of worker `i` along its gradient, which is returned."""
    g = self.gradients[i]
    self.copies[i] = self.local_optimizers[i](self.copies[i], g, self.begun[i])
    self.local_steps[i] += 1
    return g

  def count(self, i):
    """Counts an update of the center; returns (global_step, staleness)."""
    self.step += 1
    self.known_step[i] = self.step
    return self.step, self.step - 1 - self.pulled_step[i]

  def pull(self, i):
    """Worker `i` takes the center in place of its copy."""
    self.copies[i] = self.pulled[i] = self.wire(self.center)
    self.pulled_step[i] = self.known_step[i] = self.step


def check(stepper, oracle, at_rest=(0, 1), rtol=1e-4, atol=1e-5):
  """Compares the centers, and the copies of the workers `at_rest`."""
  close = {'rtol': rtol, 'atol': atol}
  np.testing.assert_allclose(stepper.read_center(), oracle.center, **close)
  if oracle.keeps_copies:
    for i in at_rest:
      np.testing.assert_allclose(
        stepper.read_copy(i), oracle.copies[i], **close
      )


def end(stepper, oracle, worker):
  """Ends a step here and there; returns {worker: (global_step, staleness)}."""
  expected = oracle.end(worker)
  stepper.release(worker)
  found = {i: stepper.join(i)[:2] for i in expected}
  np.testing.assert_equal(found, expected)
  return expected


def play(stepper, oracle, rng, num_events, **close):
  """Two workers begin and end steps in a random order, here and there.

  Args:
    stepper: stepper.Stepper of two workers.
    oracle: Oracle.
    rng: np.random.Generator.
    num_events: int, of begins and ends together.
    **close: rtol and atol of `check`, after each end.

  Yields:
    (worker, global_step, staleness) of each step that ended.
  """
  at_work, waiting = set(), set()
  for _ in range(num_events):
    worker = int(rng.choice([i for i in range(2) if i not in waiting]))
    if worker not in at_work:
      x = rng.normal(size=SIZE) + 1
      oracle.begin(worker, x)
      stepper.begin(worker, x)
      at_work.add(worker)
      continue
    at_work.discard(worker)
    expected = end(stepper, oracle, worker)
    waiting = waiting - set(expected) if expected else {worker}
    check(stepper, oracle, {0, 1} - waiting, **close)
    for i, numbers in expected.items():
      yield (i, *numbers)
  for worker in at_work:  # Else the end of the session would wait for it.
    oracle.end(worker)
    stepper.release(worker)
