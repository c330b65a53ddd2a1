"""Ray without a node: the test says what Ray and the actors answer."""

import sys
import types


class ActorDiedError(Exception):
  """In place of ray.exceptions.ActorDiedError."""


class Ref:
  """A call that was made; `answer` is what it returns, once the test says."""

  def __init__(self, call):
    self.call = call

  def is_ready(self):
    return hasattr(self, 'answer')


class Actor:
  """Notes how it is called.

  Attributes:
    options: dict, what it was made with.
    calls: list of Ref.
    is_killed: bool.
  """

  def __init__(self, options):
    self.options, self.calls, self.is_killed = options, [], False

  def __getattr__(self, method):
    return types.SimpleNamespace(
      remote=lambda *arguments: self._call(method, *arguments)
    )

  def _call(self, *call):
    self.calls.append(Ref(call))
    return self.calls[-1]

  def find(self, method):
    """Returns the last call (Ref) of a method."""
    return [ref for ref in self.calls if ref.call[0] == method][-1]


class Placement:
  """A placement group."""

  def __init__(self, bundles, strategy):
    self.bundles, self.strategy = bundles, strategy
    self.is_removed, self.ref = False, Ref(('place',))

  def ready(self):
    return self.ref


class FakeRay(types.ModuleType):
  """Stands in for the modules of ray.

  Attributes:
    actors: list of Actor, in the order in which they were made.
    placements: list of Placement.
  """

  def __init__(self):
    super().__init__('ray')
    self.actors, self.placements = [], []
    self.has, self.free = {'CPU': 4.0}, {'CPU': 1.0}
    self.exceptions = types.SimpleNamespace(
      RayError=Exception,
      ActorUnavailableError=ConnectionError,
      ActorDiedError=ActorDiedError,
    )
    self.util = types.ModuleType('ray.util')
    self.util.placement_group = self._place
    self.util.remove_placement_group = self._remove
    self.util.get_node_ip_address = lambda: '10.0.0.7'
    self.util.scheduling_strategies = types.SimpleNamespace(
      PlacementGroupSchedulingStrategy=lambda group, index: (group, index)
    )

  def put_in(self, monkeypatch):
    """Has `import ray` find this; undone when the test ends."""
    monkeypatch.setitem(sys.modules, 'ray', self)
    monkeypatch.setitem(sys.modules, 'ray.util', self.util)

  def remote(self, kind):
    def make(**options):
      def start():
        self.actors.append(Actor(options))
        return self.actors[-1]

      return types.SimpleNamespace(remote=start)

    return types.SimpleNamespace(options=make, kind=kind)

  def wait(self, refs, num_returns=1, timeout=None):
    del num_returns, timeout
    ready = [ref for ref in refs if ref.is_ready()]
    return ready, [ref for ref in refs if not ref.is_ready()]

  def get(self, ref):
    if isinstance(ref.answer, Exception):
      raise ref.answer
    return ref.answer

  def kill(self, actor):
    actor.is_killed = True

  def cluster_resources(self):
    return self.has

  def available_resources(self):
    return self.free

  def nodes(self):
    return [{'Alive': True}, {'Alive': False}]

  def get_runtime_context(self):
    return types.SimpleNamespace(get_accelerator_ids=lambda: {'GPU': ['4']})

  def _place(self, bundles, strategy):
    self.placements.append(Placement(bundles, strategy))
    return self.placements[-1]

  def _remove(self, placement):
    placement.is_removed = True
