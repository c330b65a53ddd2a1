"""What the test of a rule declares, for the battery and its oracles to run."""

import dataclasses
import typing

from distmnist.cluster import cluster
from tests.support import oracles

# Of two ps: those of the shards and of global_step.
PS_0, PS_1 = (f'/job:ps/task:{i}/device:CPU:0' for i in range(2))
SHARDS = {'w/part_0': PS_1, 'w/part_1': PS_0}


class Placement(typing.NamedTuple):
  """Where the variables of a worker of two are, with two ps.

  A name with {w} in it stands for one beside each shard; {i} is the worker.

  Attributes:
    shared: list of str, the global variables besides global_step.
    local: list of str, the local ones, on the worker if they have no {w}.
    settings: dict, of the rule.
    optimizer: str, for the slots.
    beside_step: list of str, local ones that are where global_step is.
  """

  shared: list
  local: list
  settings: dict = {}
  optimizer: str = 'momentum'
  beside_step: list = []


class Traffic(typing.NamedTuple):
  """What the first steps move, of five parameters (20 bytes) on two ps.

  Attributes:
    moved: list of (bytes pulled, bytes pushed), one a step of worker 0.
    settings: dict, of the rule.
    is_together: whether both workers make each step, as they wait.
  """

  moved: list
  settings: dict = {}
  is_together: bool = False


class RandomSteps(typing.NamedTuple):
  """Random steps of two workers that must agree with the oracle.

  Attributes:
    num_ps: int.
    optimizer: str, sgd or momentum (0.9), everywhere.
    settings: dict, of the rule.
    staleness: set of int, what must occur.
    rate: float.
    num_events: int, begins and ends.
  """

  num_ps: int
  optimizer: str
  settings: dict = {}
  staleness: frozenset = frozenset()
  rate: float = 0.2
  num_events: int = 60


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule whose center is on ps.

  Attributes:
    make: callable(cluster.Cluster, **settings) -> strategy.Strategy.
    oracle: callable(**settings, **how) -> oracles.Oracle.
    placement, traffic, random_steps: what the classes above say.
    flags: tuple of str, flags of the rule that change what it computes.
    settings: dict, the settings that stand for these flags.
  """

  make: typing.Callable
  oracle: typing.Callable
  placement: list
  traffic: list
  random_steps: list = dataclasses.field(default_factory=list)
  flags: tuple = ()
  settings: dict = dataclasses.field(default_factory=dict)

  def make_with(self, settings):
    """Returns what a Stepper takes for a rule with these settings."""
    return lambda member: self.make(member, **settings)


def place(placement, worker):
  """Returns ({name: device} of the shared, of the local variables).

  Args:
    placement: Placement.
    worker: int, whose variables.
  """
  here = {'': f'/job:worker/task:{worker}/device:CPU:0'}

  def place_all(names):
    return {
      name.format(w=shard, i=worker): device
      for name in names
      for shard, device in (SHARDS if '{w}' in name else here).items()
    }

  shared = {'global_step': PS_0, **place_all(placement.shared)}
  local = place_all(placement.local)
  for name in placement.beside_step:
    local[name.format(i=worker)] = PS_0
  return shared, local


def read_traffic(stepper, num_steps, is_together=False):
  """Returns [(bytes pulled, bytes pushed)] of the next steps."""
  found = []
  for _ in range(num_steps):
    if is_together:
      stepper.step_together([[1] * oracles.SIZE] * len(stepper.workers))
    else:
      stepper.step(0, [1] * oracles.SIZE)
    found.append((stepper.bytes_pulled, stepper.bytes_pushed))
  return found


def read_made_with(monkeypatch, module, name, num_workers=2):
  """Returns the tuple of what `module.make` gives its rule from the flags.

  Args:
    monkeypatch: the fixture.
    module: the rule's.
    name: str, of its class.
    num_workers: int.
  """
  made = []
  monkeypatch.setattr(module, name, lambda _, *args: made.append(args))
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  module.make(cluster.make_cluster(('p0:1',), hosts, 'worker', 0))
  [args] = made
  return args


def make_pair(make_stepper, rule, steps):
  """Returns (Stepper, Oracle) of a Rule for these RandomSteps."""
  stepper = make_stepper(
    steps.num_ps,
    2,
    rule.make_with(steps.settings),
    size=oracles.SIZE,
    optimizer=steps.optimizer,
    rate=steps.rate,
  )
  oracle = rule.oracle(
    rate=steps.rate,
    momentum=0.9 if steps.optimizer == 'momentum' else 0,
    **steps.settings,
  )
  return stepper, oracle
