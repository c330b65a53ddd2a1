"""Ray as a host of tasks, for launching/supervisor/task_group.py.

Each task is an actor (task_actor.py). Tasks that need each other's addresses
form a group: once all of them are requested, Ray reserves a place for each in a
placement group; their actors say where they are; then the tasks start, and
their flags have these addresses. They restart together, in new places: a node
that is lost is not asked again.

We ask each actor for what its task writes, from the byte that we have not seen
yet, so that asking again after a failure loses nothing. The actors belong to
this process: when it ends, in whatever way, Ray ends them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distmnist.common import cli, console, files, signals, stop_grace
from distmnist.launching import host as host_lib
from distmnist.launching import jobs
from distmnist.launching.ray import ray_cluster, task_actor
from distmnist.launching.supervisor import failures

_log = logging.getLogger(__name__)

# From the order to kill a task until its actor must have reported its end.
KILL_SECS = 5.0
# Ray says within about a minute whether an actor that does not answer is
# lost.
UNAVAILABLE_SECS = 90.0
ASK_AGAIN_SECS = 1.0
_TICK_SECS = 0.1
# Of a large cluster, only the first tasks' places are printed.
_MAX_PLACES = 16


@dataclasses.dataclass
class _Attempt:
  """An attempt at a task, and its actor once there is one."""

  request: host_lib.Request
  actor: Any = None
  address: str = ''
  offset: int = 0  # of its output, in bytes
  kill_time: float = math.inf
  heard_time: float = math.inf
  ask_time: float = math.inf

  @property
  def name(self) -> str:
    return self.request.name

  @property
  def node(self) -> str:
    return self.address.rpartition(':')[0]


class _Group:
  """Tasks that are placed and started together.

  Attributes:
    tasks: by name, each with an address that stands in for the one that
      Ray will choose.
    left: by name, those that have not ended.
    is_begun: whether they were told to start.
    num_begun: how often they were.
    unstarted: those whose actors have not started them yet.
    wait: the wait for what Ray does until then.
    placement: PlacementGroup, or None.
  """

  def __init__(self, tasks: Iterable[jobs.Task]) -> None:
    self.tasks = {task.name: task for task in tasks}
    self.num_begun = 0
    self.forget()

  def forget(self) -> None:
    self.left: dict[str, _Attempt] = {}
    self.is_begun = False
    self.unstarted: set[str] = set()
    self.placement: Any = None
    self.wait: console.Wait | None = None


class RayHost(host_lib.Host):
  """Runs tasks on Ray, to which this process is connected."""

  name = 'Ray'

  def __init__(
    self,
    groups: Iterable[Iterable[jobs.Task]],
    bundles: Mapping[str, dict[str, int]],
    folder: str,
    env: Mapping[str, str],
    grace_secs: float,
    wait_secs: float,
  ) -> None:
    """
    Args:
      groups: those that start together.
      bundles: name of a task -> {'CPU': number, 'GPU': number}.
      folder: where the tasks run on their nodes.
      env: variables for all tasks.
      grace_secs: from SIGTERM to SIGKILL for tasks that still run when this
        process is gone.
      wait_secs: how long Ray may take to place tasks, and then to start their
        actors.
    """
    super().__init__()
    self._groups = [_Group(tasks) for tasks in groups]
    self._bundles = bundles
    self._folder, self._env = folder, env
    self._grace_secs = grace_secs
    self._wait_secs = wait_secs
    # ObjectRef -> its group, and what takes its value, or a RayError.
    self._pending: dict[Any, tuple[_Group, Callable[[Any], None]]] = {}
    self._events: list[tuple[str, int | None]] = []

  def __enter__(self) -> RayHost:
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self.signals))
      self._at_exit = stack.pop_all()
    self.is_ready = True
    return self

  def __exit__(self, *error: object) -> None:
    for group in self._groups:
      self._release(group)
    self._at_exit.close()

  def start(self, request: host_lib.Request) -> None:
    name = request.name
    (group,) = [group for group in self._groups if name in group.tasks]
    group.left[name] = _Attempt(request)
    if len(group.left) == len(group.tasks):
      self._place(group)

  def signal(self, names: Iterable[str], signum: int) -> None:
    for group in self._groups:
      found = [group.left[name] for name in names if name in group.left]
      if found and not group.is_begun:
        self._cancel(group)
        continue
      for attempt in found:
        # Ray blocks SIGINT in all that it starts.
        sent = signal.SIGTERM if signum == signal.SIGINT else signum
        attempt.actor.signal.remote(int(sent))
        if signum == signal.SIGKILL:
          attempt.kill_time = time.monotonic() + KILL_SECS

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    end = math.inf if timeout_secs is None else time.monotonic() + timeout_secs
    num_signals = len(self.signals)
    while True:
      self._turn(max(0.0, min(_TICK_SECS, end - time.monotonic())))
      self._look_at_clock()
      is_over = time.monotonic() >= end
      if self._events or is_over or len(self.signals) > num_signals:
        break
    events, self._events = self._events, []
    return events

  def kill(self) -> None:
    for group in self._groups:
      self._cancel(group)

  def _turn(self, secs: float) -> None:
    """Waits for an answer of Ray's, and takes all that have come."""
    import ray

    if not self._pending:
      if select.select([self._wake], [], [], secs)[0]:
        self._wake.recv(4096)
      return
    ready, _ = ray.wait(list(self._pending), timeout=secs)
    if ready:
      refs = list(self._pending)
      ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
    for ref in ready:
      _, take = self._pending.pop(ref, (None, None))
      if not take:  # Given up for what another one has said.
        continue
      try:
        value = ray.get(ref)
      except ray.exceptions.RayError as error:
        value = error
      take(value)

  def _look_at_clock(self) -> None:
    now = time.monotonic()
    for group in self._groups:
      if group.wait and (group.unstarted or not group.is_begun):
        self._check_wait(group, group.wait)
      for attempt in list(group.left.values()):
        if now > attempt.kill_time:
          reason = f'its actor on {attempt.node} does not answer: killed'
          self._end(group, attempt, -signal.SIGKILL, reason)
        elif now > attempt.ask_time:
          attempt.ask_time = math.inf
          self._follow(group, attempt)

  def _check_wait(self, group: _Group, wait: console.Wait) -> None:
    left = sorted(group.unstarted) or [*group.left]
    names = ', '.join(left[:4]) + (', ...' * (len(left) > 4))
    if not wait.is_over(f'for Ray to place and start {names}'):
      return
    bundles = [self._bundles[name] for name in group.left]
    kind = cli.LostError if group.num_begun else cli.RunError
    why = (
      f'after {self._wait_secs:g} s Ray has not started {names}: '
      f'{ray_cluster.describe_room(bundles)}; ask for fewer tasks, or see '
      '--ray_cpus, --ray_gpus and --ray_wait_secs'
    )
    self._give_up(group, kind(why))

  def _give_up(
    self, group: _Group, error: cli.LostError | cli.RunError
  ) -> None:
    """Ends tasks that Ray does not start; the run can do without an evaluator.

    Raises:
      cli.RunError: the `error`, if they are members of the cluster.
    """
    if any(task.is_member for task in group.tasks.values()):
      raise error
    for name in group.left:
      self.reasons[name] = str(error)
      self._events.append((name, cli.FAILED))
    self._release(group)

  def _place(self, group: _Group) -> None:
    from ray.util import placement_group

    group.wait = console.Wait(self._wait_secs)
    bundles = [self._bundles[name] for name in group.left]
    group.placement = placement_group(bundles, strategy='PACK')
    self._await(group, group.placement.ready(), self._make_actors)

  def _make_actors(self, group: _Group, placed: Any) -> None:
    import ray
    from ray.util import scheduling_strategies

    if isinstance(placed, Exception):
      why = f'Ray cannot place the tasks: {explain(placed)}'
      self._give_up(group, cli.LostError(why))
      return
    group.wait = console.Wait(self._wait_secs)
    kind = ray.remote(task_actor.TaskActor)
    for index, attempt in enumerate(group.left.values()):
      bundle = self._bundles[attempt.name]
      attempt.actor = kind.options(
        num_cpus=bundle['CPU'],
        num_gpus=bundle.get('GPU', 0),
        scheduling_strategy=(
          scheduling_strategies.PlacementGroupSchedulingStrategy(
            group.placement, index
          )
        ),
      ).remote()
      self._ask(group, attempt, 'find_address', self._take_address)

  def _take_address(
    self, group: _Group, attempt: _Attempt, address: str
  ) -> None:
    attempt.address = address
    if not all(each.address for each in group.left.values()):
      return
    group.is_begun = True
    group.num_begun += 1
    group.unstarted = set(group.left)
    group.wait = console.Wait(self._wait_secs)
    found = [f'{each.name} {each.address}' for each in group.left.values()]
    if len(found) > _MAX_PLACES:
      found[_MAX_PLACES:] = [f'{len(found) - _MAX_PLACES} more']
    _log.info(f'Ray has placed {", ".join(found)}')
    grace_secs = stop_grace.for_remote(self._grace_secs)
    for each in group.left.values():
      argv = [_locate(word, group) for word in each.request.argv]
      env = {**self._env, **each.request.env}
      words = argv, env, self._folder, grace_secs
      self._ask(group, each, 'start', self._take_start, *words)

  def _take_start(
    self, group: _Group, attempt: _Attempt, obstacle: str | None
  ) -> None:
    group.unstarted.discard(attempt.name)
    if obstacle:
      reason = f'cannot run on {attempt.node}: {obstacle}'
      self._end(group, attempt, cli.FAILED, reason)
    else:
      self.begun.append((attempt.name, None))
      self._follow(group, attempt)

  def _follow(self, group: _Group, attempt: _Attempt) -> None:
    self._ask(group, attempt, 'follow', self._take_output, attempt.offset)

  def _take_output(
    self,
    group: _Group,
    attempt: _Attempt,
    answer: tuple[bytes, int, int | None],
  ) -> None:
    data, attempt.offset, code = answer
    attempt.heard_time = time.monotonic()
    with (
      contextlib.suppress(OSError),  # It costs lines of a log, and no run.
      open(attempt.request.log, 'ab', opener=files.no_follow) as log,
    ):
      log.write(data)
    if code is None:
      self._follow(group, attempt)
      return
    code = failures.from_shell(code)
    where = f'{failures.describe_end(code)} on {attempt.node}'
    self._end(group, attempt, code, where if code else '')

  def _ask(
    self,
    group: _Group,
    attempt: _Attempt,
    method: str,
    take: Callable[[_Group, _Attempt, Any], None],
    *arguments: Any,
  ) -> None:
    """Calls a method of a task's actor; `take` gets what it returns.

    Args:
      group, attempt: the task's.
      method: its name.
      take: called with group, attempt and answer.
      *arguments: what the method takes.
    """

    def take_answer(group: _Group, answer: Any) -> None:
      if group.left.get(attempt.name) is not attempt:
        return  # It has ended: its actor was killed.
      if isinstance(answer, Exception):
        self._note_error(group, attempt, answer)
      else:
        take(group, attempt, answer)

    ref = getattr(attempt.actor, method).remote(*arguments)
    self._await(group, ref, take_answer)

  def _await(
    self, group: _Group, ref: Any, take: Callable[[_Group, Any], None]
  ) -> None:
    self._pending[ref] = group, functools.partial(take, group)

  def _note_error(
    self, group: _Group, attempt: _Attempt, error: Exception
  ) -> None:
    import ray

    now = time.monotonic()
    may_answer = isinstance(error, ray.exceptions.ActorUnavailableError)
    if may_answer and now < attempt.heard_time + UNAVAILABLE_SECS < math.inf:
      attempt.ask_time = now + ASK_AGAIN_SECS
      return
    where = f' on {attempt.node}' if attempt.node else ''
    self._end(group, attempt, cli.LOST, f'lost{where}: {explain(error)}')

  def _end(
    self, group: _Group, attempt: _Attempt, code: int, reason: str = ''
  ) -> None:
    import ray

    del group.left[attempt.name]
    group.unstarted.discard(attempt.name)
    if reason:
      self.reasons[attempt.name] = reason
    self._events.append((attempt.name, code))
    ray.kill(attempt.actor)
    if not group.is_begun:
      self._cancel(group)  # Without its address the others cannot start.
    elif not group.left:
      self._release(group)

  def _cancel(self, group: _Group) -> None:
    """Gives up a group that has not begun, or what is left of one."""
    self._events += [(name, -signal.SIGTERM) for name in group.left]
    self._release(group)

  def _release(self, group: _Group) -> None:
    """Ends the actors of a group, and gives its places back."""
    import ray
    from ray.util import remove_placement_group

    self._pending = {
      ref: (of, take)
      for ref, (of, take) in self._pending.items()
      if of is not group
    }
    for attempt in group.left.values():
      if attempt.actor:
        ray.kill(attempt.actor)
    if group.placement:
      remove_placement_group(group.placement)
    group.forget()


def explain(error: Exception) -> str:
  """Returns why an actor has failed, in one line, from a RayError."""
  if cause := getattr(error, 'cause', None):  # Raised by the actor's code.
    return f'{type(cause).__name__}: {cause}'
  said = ' '.join(str(error).split())
  found = re.search(
    r'because (?:the actor is dead because )?(.+?)(?:\. |$)', said
  )
  return (found[1] if found else said)[:300].rstrip('.')


def _locate(word: str, group: _Group) -> str:
  """Returns a word of a command with the tasks' real addresses."""
  if not word.startswith(('--ps_hosts=', '--worker_hosts=')):
    return word
  name, _, stand_ins = word.partition('=')
  places = {
    task.address: group.left[task.name].address for task in group.tasks.values()
  }
  return f'{name}={",".join(places[each] for each in stand_ins.split(","))}'
