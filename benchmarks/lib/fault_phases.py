"""The phases of a run, and the conditions that a task meets in one of them.

A phase is waited for in what a run writes: the logs of its tasks, its history,
the files of its log directory, the requests that reach its store. A condition
begins at once; unless it is a kill, it lasts longer than each limit of the run.
"""

import contextlib
import dataclasses
import errno
import os
import pathlib
import random
import signal
import time

from lib import fault_files, fault_hosts, fault_run, processes

WARN_SECS, FAIL_SECS, START_SECS = 2, 8, 10
LIMITS = [
  f'--stall_warn_secs={WARN_SECS}',
  f'--stall_fail_secs={FAIL_SECS}',
  f'--start_timeout_secs={START_SECS}',
]
# At the start nobody can tell what passes from a wrong address: there a run may
# wait for longer than any condition lasts.
PATIENT = ['--start_timeout_secs=30']
AT_START = 'start', 'check-in', 'after the end'
# Longer than each of the limits.
LONG_SECS = 14.0
AWAY_SECS = 12.0
REFUSED_FORKS = 3
RULES = {
  'async_sgd': ['--train_steps=1200'],
  'sync_sgd': ['--train_steps=800'],
  'easgd': ['--local_learning_rate=0.05', '--train_steps=800'],
  'ring_allreduce': ['--seed=1', '--train_steps=800'],
  'own loop': ['--last_step=1200'],
}
ROLES = {'ps': ['ps 0', 'ps 1'], 'chief': ['worker 0'], 'worker': ['worker 1']}
# What a loop of one's own has not; it evaluates and reports by itself.
NOT_OF_LOOPS = 'validation', 'evaluation', 'report'


class PhaseRun(fault_run.Run):
  """A run with short limits, saves and validations.

  Attributes:
    begins_again: list of float, when it was launched once more.
    suspended: set of the tasks that SIGSTOP has suspended.
    mute_secs: float, for how long no other task was left.
  """

  mute_secs = 0.0
  common = [
    '--model=softmax',
    '--dataset=synthetic',
    '--synthetic_train_images=3000',
    '--synthetic_test_images=1000',
    '--validation_images=500',
    '--batch_size=20',
    '--learning_rate=0.1',
    '--validation_steps=150',
    '--early_stopping_patience=1000',
    '--save_steps=100',
    '--log_secs=0',
    '--history',
    *LIMITS,
  ]

  def __init__(self, *args, **options):
    self.suspended, self.begins_again = set(), []
    super().__init__(*args, **options)

  def pass_time(self, secs):
    """Waits, and adds up `mute_secs`."""
    start = time.monotonic()
    self.wait_until(lambda: False, secs)
    left = self.find_pids().keys()
    if left and left <= self.suspended:
      self.mute_secs += time.monotonic() - start

  def start_again(self):
    self.look()
    self.begins_again.append(time.time())
    super().start_again()

  def is_saving(self):
    return any(self.logdir.glob('.unfinished_*'))

  def is_reported(self):
    return (self.logdir / 'report.json').exists()

  def begins(self, kind):
    """Returns whether a new event of this kind comes in time."""
    return self.wait_for_event(kind, 120)


class LoopRun(PhaseRun):
  """A run of a script with a loop of its own, which keeps no history."""

  common = ['--save_steps=100', *LIMITS]
  launch_flags = ['--module=fault_loop']
  steps_flag = '--last_step='

  def begins(self, kind):
    if kind == 'restoring':
      num = self._count_starts()
      return self.wait_until(lambda: self._count_starts() > num, 120, 0.002)
    return self.wait_until(lambda: self.step > 0, 120, 0.002)

  def read_report(self):
    return {'global_step': self.step, 'flags': {}}

  def _count_starts(self):
    return sum(len(log.start_times) for log in self.logs.values())


class StoreRun(LoopRun):
  """A run whose log directory is in an object store, and so is its history.

  Attributes:
    store: tests.support.object_store.Store; set by `in_store`.
  """

  common = [flag for flag in PhaseRun.common if flag != '--history']
  # The store is not in a network of the tasks' own.
  launch_flags = ['--isolate=off']
  steps_flag = PhaseRun.steps_flag

  def find_logdir(self, folder):
    # What is in the store outlives this cell.
    return f'{self.store.url}/{pathlib.Path(folder).name}'

  def is_saving(self):
    return self._has_sent('model.ckpt')

  def is_reported(self):
    return self._has_sent('report.json')

  def begins(self, kind):
    if kind == 'validating':
      return self.wait_until(lambda: self._has_sent('best/'), 120, 0.002)
    if kind == 'evaluating':
      return self.wait_until(lambda: self.step >= self.last_step, 120, 0.002)
    return super().begins(kind)

  def _has_sent(self, name):
    requests = list(self.store.requests)
    return any(m in ('PUT', 'POST') and name in path for m, path in requests)


class HostsPhaseRun(PhaseRun, fault_hosts.HostsRun):
  """A run with each task on a host of its own."""

  host_flags = ()


class HostsLoopRun(LoopRun, fault_hosts.HostsRun):
  """A script's run with each task on a host of its own."""

  host_flags = ()
  module = 'fault_loop'


@contextlib.contextmanager
def open_run(cell, folder, extra=()):
  """Yields the run for a Cell; it is ended at the end of the context.

  Args:
    cell: Cell.
    folder: path, for all that the run writes.
    extra: list of str, train's flags that come last.

  Raises:
    fault_files.CannotError, network.CannotError: this machine cannot have it.
  """
  is_loop = cell.rule == 'own loop'
  conditions = {cell.condition, cell.other_condition}
  make_run = LoopRun if is_loop else PhaseRun
  if 'host gone' in conditions:
    make_run = HostsLoopRun if is_loop else HostsPhaseRun
  rule = f'--strategy={"async_sgd" if is_loop else cell.rule}'
  patient = PATIENT if cell.phase in AT_START else []
  flags = [rule, *RULES[cell.rule], *patient, *extra]
  shape = (0, 3) if cell.rule == 'ring_allreduce' else (2, 2)
  with contextlib.ExitStack() as stack:
    files = stack.enter_context(
      fault_files.Files(folder, pathlib.Path(folder) / 'run')
    )
    files.env['PYTHONPATH'] = os.pathsep.join(
      [str(processes.REPO), os.path.dirname(__file__)]
    )
    if 'store away' in conditions:
      from tests.support import object_store  # noqa: PLC0415  It needs moto.

      store = stack.enter_context(object_store.running())
      files.env |= store.environ
      module = LoopRun.launch_flags if is_loop else []
      make_run = type(
        'Run',
        (StoreRun,),
        {
          'store': store,
          'launch_flags': [*StoreRun.launch_flags, *module],
          'steps_flag': make_run.steps_flag,
          'common': LoopRun.common if is_loop else StoreRun.common,
        },
      )
    run = make_run(folder, flags, *shape, files=files)
    stack.callback(run.close)
    yield run


# ---- Phases ----
def _is_at(run, mark):
  return run.wait_until(lambda: run.step >= mark * run.last_step, 120, 0.002)


def _starts(run, task):
  return run.wait_until(lambda: task in run.find_pids(), every_secs=0.002)


def _checks_in(run, task):
  log = run.logs[task]
  return run.wait_until(lambda: bool(log.lines), every_secs=0.002)


def _restores(run, task):
  """The loss of others takes the run back to a checkpoint.

  It takes one ps, or all workers where these have the variables.
  """
  if not _is_at(run, 0.3):
    return False
  if isinstance(run, PhaseRun) and not isinstance(run, LoopRun):
    run.read_new_events()
  lost = ['ps 1'] if 'ps 1' in run.logs else [*run.logs]
  are_hit = [run.signal(name, signal.SIGKILL) for name in lost]
  return all(are_hit) and run.begins('restoring')


def _ends(run, task):
  run.wait_until(lambda: False, 120)
  run.start_again()
  return _starts(run, task) or not run.is_running


PHASES = {
  'start': _starts,
  'check-in': _checks_in,
  'restore': _restores,
  'first step': lambda run, task: run.begins('session'),
  'steady': lambda run, task: _is_at(run, 0.4),
  'save': lambda run, task: (
    _is_at(run, 0.2) and run.wait_until(run.is_saving, every_secs=0.002)
  ),
  'validation': lambda run, task: run.begins('validating'),
  'last step': lambda run, task: _is_at(run, 1),
  'evaluation': lambda run, task: run.begins('evaluating'),
  'report': lambda run, task: run.wait_until(run.is_reported, 120, 0.002),
  'after the end': _ends,
}


# ---- Conditions ----
def _kill(run, task, rng):
  return run.signal(task, signal.SIGKILL)


def _suspend(run, task, rng):
  start = time.time()
  if not run.signal(task, signal.SIGSTOP):
    return False
  pid = run.find_pids().get(task)
  run.suspended.add(task)

  def wake():
    # The same process, and not one that has its place now.
    if run.find_pids().get(task) == pid:
      run.signal(task, signal.SIGCONT)
    run.suspended.discard(task)
    run.frozen.append((task, start, time.time()))

  return LONG_SECS, wake


def _fill_disk(run, task, rng):
  run.files.fail(fault_files.WRITES, errno.ENOSPC)
  return AWAY_SECS, run.files.mend


def _hang_disk(run, task, rng):
  pid = run.find_pids().get(task)
  if pid is None:
    return False
  every = fault_files.READS | fault_files.WRITES
  run.files.fail(every, fault_files.HANGS, pid)
  return LONG_SECS, run.files.mend


def _fail_once(run, task, rng):
  pid = run.find_pids().get(task)
  if pid is None:
    return False
  every = fault_files.READS | fault_files.WRITES
  name = rng.choice(['', 'model.ckpt'])
  run.files.fail(every, errno.EIO, pid, times=1, name=name)
  return True


def _lose_store(run, task, rng):
  run.store.trouble = lambda method, path: 'reset'

  def find():
    run.store.trouble = lambda method, path: None

  return AWAY_SECS, find


def _cut_off(run, task, rng):
  run.drop_packets([task], 1.0)
  return LONG_SECS, lambda: run.let_packets_through([task])


def _refuse_forks(run, task, rng):
  """The task is lost, and the kernel refuses to make another."""
  run.files.fail(fault_files.FORKS, errno.EAGAIN, times=REFUSED_FORKS)
  return run.signal(task, signal.SIGKILL)


CONDITIONS = {
  'killed': _kill,
  'suspended': _suspend,
  'disk full': _fill_disk,
  'disk hung': _hang_disk,
  'EIO once': _fail_once,
  'store away': _lose_store,
  'host gone': _cut_off,
  'fork refused': _refuse_forks,
}
# Two of these at once would be one: they use the same means.
_OF_FILES = {'disk full', 'disk hung', 'EIO once', 'fork refused'}
# They decide on what the tasks run.
_OF_THE_RUN = {'store away', 'host gone'}


@dataclasses.dataclass
class Cell:
  """A phase of a rule in which a task meets a condition; what came of it.

  Attributes:
    rule: str, a key of RULES.
    phase: str, a key of PHASES.
    condition: str, a key of CONDITIONS.
    task: str, such as 'ps 0': the task that meets it.
    other_condition, other_task: str, a second one at once; '' for none.
    has_met: bool, whether the phase came, and the task still ran.
    secs: float, from the condition to the end of the run.
    broken: list of str, what should not have happened.
  """

  rule: str
  phase: str
  condition: str
  task: str
  other_condition: str = ''
  other_task: str = ''
  has_met: bool = False
  secs: float = 0.0
  broken: list = dataclasses.field(default_factory=list)


def is_possible(rule, phase, condition, role):
  """Whether there is such a cell."""
  if rule == 'ring_allreduce' and role == 'ps':
    return False
  if rule == 'own loop' and phase in NOT_OF_LOOPS:
    return False
  # Whoever starts these tasks does so for good.
  return not (condition == 'host gone' and phase == 'after the end')


def draw_cells(seed, num, rules=tuple(RULES), conditions=tuple(CONDITIONS)):
  """Returns a list of `num` Cells, the same for the same arguments.

  Each phase x condition x role comes once before any comes again; each rule
  meets every phase and every condition; a quarter have a second condition.
  """
  rng = random.Random(seed)
  cells = []
  while len(cells) < num:
    keys = [(p, c, r) for p in PHASES for c in conditions for r in ROLES]
    rng.shuffle(keys)
    for phase, condition, role in keys:
      found = [r for r in rules if is_possible(r, phase, condition, role)]
      if not found:
        continue
      # Whichever has met this phase and this condition least often.
      rng.shuffle(found)
      rule = min(
        found,
        key=lambda r, p=phase, c=condition: sum(
          (cell.phase == p) + (cell.condition == c)
          for cell in cells
          if cell.rule == r
        ),
      )
      cell = Cell(rule, phase, condition, rng.choice(ROLES[role]))
      if len(cells) % 4 == 3:
        _draw_other(rng, cell, conditions)
      cells.append(cell)
  return cells[:num]


def _draw_other(rng, cell, conditions):
  conditions = {*conditions} - _OF_THE_RUN
  if cell.condition in _OF_FILES:
    conditions -= _OF_FILES
  tasks = [task for role in ROLES.values() for task in role]
  if cell.rule == 'ring_allreduce':
    tasks = [task for task in tasks if task.startswith('worker')]
  cell.other_condition = rng.choice(sorted(conditions) or [cell.condition])
  cell.other_task = rng.choice([task for task in tasks if task != cell.task])


def inject(run, cell, rng):
  """Waits for a cell's phase, and lets its tasks meet its conditions."""
  if not PHASES[cell.phase](run, cell.task):
    return
  ends, pairs = [], [(cell.condition, cell.task)]
  if cell.other_condition:
    pairs.append((cell.other_condition, cell.other_task))
  for condition, task in pairs:
    met = CONDITIONS[condition](run, task, rng)
    cell.has_met = cell.has_met or bool(met)
    if isinstance(met, tuple):
      secs, end = met
      ends.append((time.monotonic() + secs, end))
  for at, end in sorted(ends, key=lambda pair: pair[0]):
    # Also when the run has ended.
    while run.is_running and time.monotonic() < at:
      run.pass_time(min(1, at - time.monotonic()))
    end()
