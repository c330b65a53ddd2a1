"""bmuf: small changes on the wire, NumPy oracles, DiLoCo, and the flags."""

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.strategies import bmuf
from tests.support import oracles, rule


@pytest.mark.slow
def test_small_changes_of_three_have_a_mean_on_a_wire_of_16_bits(make_stepper):
  make_rule = RULE.make_with(block(1, mu=0))
  stepper = make_stepper(1, 3, make_rule, wire_dtype='bfloat16')
  # Neighbours of 1000 are 996 and 1004 on the wire.
  assert stepper.step_together([[2000]] * 3) == [(1, 0, [1000])] * 3
  for step in range(2, 5):
    x = stepper.read_copy(0)[0]
    # Half the way to each, 0.5 and 1 and 1.5: the mean is 1.
    found = stepper.step_together([[x + 1], [x + 2], [x + 3]])
    assert found == [(step, 0, [1000 + step - 1])] * 3


class Oracle(oracles.Oracle):
  """Each T-th step all push the change of a block: D = mu D + zeta mean.

  With a delay of N each pushes when it comes there, and every N-th push moves
  the momentum.
  """

  def __init__(self, period, mu, zeta, is_nesterov=False, delay=0, **how):
    super().__init__(**how)
    self.waits = not delay
    self._period, self._mu, self._zeta = period, mu, zeta
    self._is_nesterov, self._delay = is_nesterov, delay
    self._delta, self._given = 0, []

  def end(self, i):
    # The slots are the worker's own: no exchange touches them.
    self.step_locally(i)
    if self.local_steps[i] % self._period:
      return {i: (self.known_step[i], -1)}
    change = self.wire(self.copies[i] - self.pulled[i])
    self._given.append(change)
    if self._delay:
      return self._push_alone(i, change)
    if len(self._given) < self.num_workers:
      return {}
    block_change, self._given = np.mean(self._given, axis=0), []
    self._delta = self._mu * self._delta + self._zeta * block_change
    if self._is_nesterov:
      # PyTorch's SGD with lr = zeta, of -block_change as the gradient.
      v = self._delta / self._zeta
      self.center = self.center + self._zeta * (block_change + self._mu * v)
    else:
      self.center = self.center + self._delta
    self.step += 1
    for j in range(self.num_workers):
      self.pull(j)
    return dict.fromkeys(range(self.num_workers), (self.step, 0))

  def _push_alone(self, i, change):
    """Algorithm 3 of the paper, with m = -D / zeta; returns as `end`."""
    self.center = self.center + self._zeta * change / self._delay
    if len(self._given) == self._delay:
      mean, self._given = np.mean(self._given, axis=0), []
      self._delta = self._mu * self._delta + self._zeta * mean
      self.center = self.center + self._mu * self._delta
    told = self.count(i)
    self.pull(i)
    return {i: told}


def block(period, mu=0.5, zeta=1, **forms):
  return {'period': period, 'mu': mu, 'zeta': zeta, **forms}


def make_rule(member, period, mu, zeta, is_nesterov=False, delay=0):
  return bmuf.Bmuf(member, period, mu, zeta, is_nesterov, delay)


RULE = rule.Rule(
  make_rule,
  Oracle,
  flags=(
    '--communication_period=2',
    '--block_momentum=0.5',
    '--block_learning_rate=0.8',
  ),
  settings=block(2, 0.5, 0.8),
  placement=[
    rule.Placement(
      ['{w}', 'bmuf/{w}/block_delta'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'bmuf/token',
        'bmuf/known_step',
        'bmuf/as_pulled',
        'bmuf/local_step',
      ],
      block(1),
    ),
    rule.Placement(
      ['{w}', 'bmuf/{w}/block_delta', 'bmuf/{w}/block_sum'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'bmuf/pulled_step',
        'bmuf/as_pulled',
        'bmuf/local_step',
      ],
      block(1, delay=2),
    ),
  ],
  traffic=[
    rule.Traffic([(0, 0), (20, 20)], block(2), is_together=True),
    rule.Traffic([(0, 0), (20, 20)] * 2, block(2, delay=2)),
  ],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, block(3, *of_block), {-1, 0}, 0.1)
    # The filter sees the mean of the copies, whatever has moved them.
    for num_ps, optimizer, *of_block in (
      (1, 'sgd', 0, 1),
      (2, 'momentum', 0.8, 0.7),
    )
  ]
  + [
    rule.RandomSteps(
      *(2, 'momentum', block(3, 0.8, 0.7, delay=2), {-1, 0, 1}, 0.1)
    ),
  ],
)


class Adam:
  """Adam of one vector, which AdamW is too, as a vector does not decay."""

  def __init__(self, rate):
    self._rate = rate
    self.forget()

  def forget(self):
    self._t = self._m = self._v = 0

  def __call__(self, x, g, step):
    del step
    self._t += 1
    self._m = 0.9 * self._m + 0.1 * g
    self._v = 0.999 * self._v + 0.001 * g**2
    m, v = self._m / (1 - 0.9**self._t), self._v / (1 - 0.999**self._t)
    return x - self._rate * m / (np.sqrt(v) + 1e-8)


def make_diloco(make_stepper, num_ps, num_workers, settings):
  """Returns (Stepper, Oracle) with AdamW, whose state outlives a round."""
  made = make_stepper(
    *(num_ps, num_workers, RULE.make_with(settings)),
    size=oracles.SIZE,
    optimizer='adamw',
    rate=0.01,
  )
  oracle = Oracle(num_workers=num_workers, **settings)
  oracle.local_optimizers = [Adam(0.01) for _ in range(num_workers)]
  return made, oracle


PAPERS = {'mu': 0.9, 'zeta': 0.7}  # Of DiLoCo.


@pytest.mark.slow
def test_diloco_is_the_papers_to_the_sixth_digit(make_stepper):
  settings = block(3, **PAPERS, is_nesterov=True)
  made, oracle = make_diloco(make_stepper, 2, 2, settings)
  rng = np.random.default_rng(5)
  for _ in range(4 * 3):
    xs = rng.normal(size=(2, oracles.SIZE)) + 1
    for i, x in enumerate(xs):
      oracle.begin(i, x)
    *_, told = [oracle.end(i) for i in range(2)]
    assert made.step_together(xs)[1][:2] == told[1]
    oracles.check(made, oracle, rtol=0, atol=1e-6)
  assert oracle.step == 4


@pytest.mark.slow
@pytest.mark.daily(but=['2-3-2'])
@pytest.mark.parametrize(
  'num_ps, num_workers, delay',
  [(2, 3, 2), (1, 1, 2), (2, 1, 1), (1, 2, 2), (1, 3, 3)],
)
def test_delayed_nesterov_is_the_papers_to_the_sixth_digit(
  make_stepper, num_ps, num_workers, delay
):
  settings = block(2, **PAPERS, delay=delay)
  made, oracle = make_diloco(make_stepper, num_ps, num_workers, settings)
  rng = np.random.default_rng(6)
  found = set()
  for _ in range(4 * 2):
    for i in range(num_workers):
      x = rng.normal(size=oracles.SIZE) + 1
      oracle.begin(i, x)
      made.begin(i, x)
    for i in rng.permutation(num_workers):
      told = oracle.end(i)
      assert {i: made.end(i)[:2]} == told
      oracles.check(made, oracle, range(num_workers), rtol=0, atol=1e-6)
      found.add(told[i][1])
  assert oracle.step == 4 * num_workers
  assert found >= {-1, num_workers - 1}


@pytest.mark.slow
def test_pushes_from_one_center_are_an_update_of_diloco(make_stepper):
  # With --delayed_nesterov=2, and two workers that both pulled the center.
  xs = [[4.0], [2.0]]
  settings = block(1, **PAPERS)
  together = make_stepper(
    1, 2, RULE.make_with({**settings, 'is_nesterov': True})
  )
  [*_, expected] = together.step_together(xs)
  alone = make_stepper(1, 2, RULE.make_with({**settings, 'delay': 2}))
  for i, x in enumerate(xs):
    alone.begin(i, x)
  # Half of the first one's change counts, without momentum.
  assert alone.end(0).center == pytest.approx([0.7 * 2 / 2])
  assert alone.end(1).center == pytest.approx(expected.center)
  assert expected.center == pytest.approx([0.7 * 1.5 * 1.9])


@pytest.mark.daily
@pytest.mark.slow
def test_who_dies_takes_its_block_along_and_the_buffer_stays(make_stepper):
  settings = block(2, **PAPERS, delay=2)
  made, oracle = make_diloco(make_stepper, 1, 2, settings)
  rng = np.random.default_rng(7)

  def step(i):
    x = rng.normal(size=oracles.SIZE) + 1
    oracle.begin(i, x)
    made.begin(i, x)
    oracles.end(made, oracle, i)

  for i in 0, 0, 1:  # A push waits in B, and worker 1 is amid a block.
    step(i)
  made.leave(1)
  made.come_back(1)
  oracle.start_anew(1, np.array(made.read_copy(1)))
  for i in 1, 1, 0, 0:
    step(i)
    oracles.check(made, oracle)
  assert oracle.step == 3


@pytest.mark.parametrize(
  'words, num_workers, expected',
  [
    ([], 2, (10, 1 / 2, 1, False, 0)),  # mu is 1 - 1 / n.
    ([], 3, (10, 2 / 3, 1, False, 0)),
    (
      [
        '--communication_period=2',
        '--block_momentum=0',
        '--block_learning_rate=0.5',
      ],
      2,
      (2, 0, 0.5, False, 0),
    ),
    (['--block_nesterov'], 2, (10, 1 / 2, 1, True, 0)),
    (['--delayed_nesterov=3'], 2, (10, 1 / 2, 1, False, 3)),
  ],
)
def test_the_flags_reach_the_rule(
  set_flags, monkeypatch, words, num_workers, expected
):
  set_flags(*words)
  found = rule.read_made_with(monkeypatch, bmuf, 'Bmuf', num_workers)
  assert found == pytest.approx(expected)


def test_a_block_is_of_the_batches_of_all(set_flags):
  set_flags()
  member = cluster.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 0)
  assert bmuf.make(member).batches_per_update == 20
  set_flags('--delayed_nesterov=2')
  assert bmuf.make(member).batches_per_update == 10
