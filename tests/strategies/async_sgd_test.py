"""async_sgd: a NumPy oracle, for oracles_test.py."""

from distmnist.strategies import async_sgd
from tests.support import oracles, rule


class Oracle(oracles.Oracle):
  """A step reads the center and is applied to what it is by then."""

  keeps_copies = False

  def begin(self, i, x):
    self.pull(i)
    super().begin(i, x)

  def end(self, i):
    g = self.wire(self.gradients[i])
    self.center = self.optimizer(self.center, g, self.begun[i])
    return {i: self.count(i)}


RULE = rule.Rule(
  async_sgd.make,
  Oracle,
  placement=[rule.Placement(['{w}', '{w}/Momentum'], [])],
  traffic=[rule.Traffic([(20, 20)] * 2)],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, staleness={0, 1, 2}, num_events=40)
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)
