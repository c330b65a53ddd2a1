"""Every rule in NumPy, slowly, as its docstring says, with all that flags add.

The center's optimizer and the local one differ in kind and rate, the rate
falls with the global step, gradients are clipped, the Hessian is not the
identity, and what crosses the wire may be rounded to bfloat16. Nothing here is
the package's.
"""

import numpy as np

SIZE, PERIOD = 5, 2
HESSIAN = [1.0, 0.5, 2.0, 0.25, 1.5]
CLIP_NORM = 2.0
# Momentum on the center, plain steps here; both rates halve at these steps.
RATE, MOMENTUM, LOCAL_RATE, BOUNDARIES = 0.1, 0.9, 0.3, (2, 5)
ALPHA, MU, ZETA, DC_LAMBDA = 0.3, 0.5, 0.8, 0.4


def round_to_bfloat16(x):
  """Returns float64 `x` as bfloat16 has it: to the nearest, ties to even."""
  bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
  bits += 0x7FFF + ((bits >> 16) & 1)
  return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)


def compute_factor(step):
  return 0.5 ** sum(step >= boundary for boundary in BOUNDARIES)


class Oracle:
  """Workers that begin (pull, gradient) and end (all that follows).

  Attributes:
    center: float array, x~.
    copies: list of float arrays, x^i.
    step: int, the global_step.
  """

  def __init__(self, name, num_workers, wire=lambda x: x):
    self.name, self.n, self.wire = name, num_workers, wire
    self.center, self.velocity = np.zeros(SIZE), np.zeros(SIZE)
    self.copies = [np.zeros(SIZE) for _ in range(num_workers)]
    self.pulled = [np.zeros(SIZE) for _ in range(num_workers)]
    self.pulled_step = [0] * num_workers
    self.sums = [np.zeros(SIZE) for _ in range(num_workers)]
    self.local_steps = [0] * num_workers
    self.known = [0] * num_workers
    self.delta = np.zeros(SIZE)
    self.step, self.gifts, self.at_work = 0, {}, {}

  @property
  def is_local(self):
    return self.name in ('downpour', 'agn', 'sagn', 'easgd', 'dynsgd', 'bmuf')

  @property
  def waits(self):
    return self.name in ('sync_sgd', 'sagn', 'bmuf')

  def begin(self, i, x):
    if not self.is_local and self.name in ('async_sgd', 'ssp', 'sync_sgd'):
      self.copies[i], self.pulled_step[i] = self.wire(self.center), self.step
    g = np.array(HESSIAN) * (self.copies[i] - x)
    norm = np.linalg.norm(g)
    self.at_work[i] = g * min(1, CLIP_NORM / norm), self.step

  def end(self, i):
    """Returns {worker: (global_step, staleness)} of the steps that ended."""
    g, begun = self.at_work.pop(i)
    rate = LOCAL_RATE * compute_factor(begun)
    t = self.local_steps[i]
    self.local_steps[i] += 1
    if self.name == 'easgd':
      told = self.known[i], -1
      if (t + 1) % PERIOD == 0:
        d = self.wire(ALPHA * (self.copies[i] - self.wire(self.center)))
        self.copies[i] = self.copies[i] - d
        self.center = self.center + d
        told = self._count(i, self.step, self.step)
      self.copies[i] = self.copies[i] - rate * g
      return {i: told}
    if self.is_local:
      self.copies[i] = self.copies[i] - rate * g
      self.sums[i] = self.sums[i] + g
      if (t + 1) % PERIOD:
        return {i: (self.known[i], -1)}
    change = self.copies[i] - self.pulled[i]
    tensor = {
      'agn': self.sums[i] / PERIOD,
      'sagn': self.sums[i] / PERIOD,
      'downpour': self.sums[i],
      'dynsgd': change,
      'bmuf': change,
    }.get(self.name, g)
    self.sums[i] = np.zeros(SIZE)
    sent = self.wire(tensor)
    if self.waits:
      return self._meet(i, sent)
    staleness = self.step - self.pulled_step[i]
    self._apply(i, sent, staleness, begun)
    told = self._count(i, self.step, self.pulled_step[i])
    self._pull(i)
    return {i: told}

  def _count(self, i, step, read_step):
    self.step += 1
    self.known[i] = self.step
    return self.step, step - read_step

  def _pull(self, i):
    self.copies[i] = self.pulled[i] = self.wire(self.center)
    self.pulled_step[i] = self.step

  def _apply(self, i, sent, staleness, begun):
    if self.name == 'dynsgd':
      self.center = self.center + sent / (staleness + 1)
      return
    factor = compute_factor(begun)
    if self.name == 'staleness_aware':
      factor /= max(1, staleness)
    if self.name == 'dc_asgd':
      sent = sent + DC_LAMBDA * sent * sent * (self.center - self.pulled[i])
    self._step_center(sent, factor)

  def _step_center(self, g, factor):
    self.velocity = MOMENTUM * self.velocity + g
    self.center = self.center - RATE * factor * self.velocity

  def _meet(self, i, sent):
    self.gifts[i] = sent
    if len(self.gifts) < self.n:
      return {}
    mean = sum(self.gifts.values()) / self.n
    if self.name == 'bmuf':
      self.delta = MU * self.delta + ZETA * mean
      self.center = self.center + self.delta
    else:
      self._step_center(mean, compute_factor(self.step))
    self.gifts, self.step = {}, self.step + 1
    for j in range(self.n):
      self._pull(j)
      self.known[j] = self.step
    return dict.fromkeys(range(self.n), (self.step, 0))
