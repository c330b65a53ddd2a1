"""staleness_aware: a NumPy oracle, for oracles_test.py."""

from distmnist.strategies import staleness_aware
from tests.support import oracles, rule


class Oracle(oracles.Oracle):
  """eta is divided by the staleness s, but not by 0."""

  def end(self, i):
    s = self.step - self.pulled_step[i]
    g = self.wire(self.gradients[i])
    self.center = self.optimizer(self.center, g, self.begun[i], 1 / max(1, s))
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  staleness_aware.make,
  Oracle,
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'], ['local_copy/w', 'staleness_aware/pulled_step']
    )
  ],
  traffic=[rule.Traffic([(20, 20)])],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, staleness={0, 1, 2, 3})
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)
