"""The faults: what each does to a run, and when the run has recovered."""

import dataclasses
import functools
import signal
import time

from lib import fault_files
from lib.fault_recovery import Recovery

FREEZE_SECS = 2.0
REPLACE_SECS = 30.0
ONE_WAY_SECS = 15.0
LOSS = 0.02


@dataclasses.dataclass
class Fault:
  """One fault and what came of it.

  Attributes:
    task: str, such as 'ps 0': the task that is hit, or the first of two.
    kind: str, a key of KINDS.
    other: str, the second task, if two are hit.
    mark: float, the fraction of the steps after which it comes.
    recover_secs: float, None if it never recovered.
    steps_lost: int, global steps that had to be done again.
    has_come: bool, whether the run lasted until then.
    is_survived: bool; the end of the run counts too.
    note: str, what went wrong.
    violations: list of str, the invariants that the history breaks.
  """

  task: str
  kind: str
  other: str = ''
  mark: float = 0.0
  recover_secs: float | None = None
  steps_lost: int = 0
  has_come: bool = False
  is_survived: bool = False
  note: str = ''
  violations: list = dataclasses.field(default_factory=list)

  @property
  def tasks(self):
    return [task for task in (self.task, self.other) if task]


def inject(run, fault):
  """Injects a fault, waits for the recovery, and fills in `fault`."""
  run.look()
  fault.has_come = True
  KINDS[fault.kind](run, fault)


def draw(rng, names, kinds):
  """Draws a Fault from a random.Random: its kind, its tasks, its moment.

  Args:
    names: list of str, the tasks of the run; no kind is drawn that needs a ps
      where there is none, or none where there is one. Without a ps, two workers
      at once are hit in a quarter of the kinds for which that is possible.
  """
  ps = [name for name in names if name.startswith('ps')]
  impossible = NEED_NO_PS if ps else NEED_PS
  possible = [k for k in kinds if k not in impossible]
  if not possible:
    needed = 'without a ps' if ps else 'with a ps'
    raise SystemExit(f'{", ".join(kinds)}: only under rules {needed}')
  kind = rng.choice(possible)
  fault = Fault(rng.choice(names), kind, mark=rng.uniform(0.05, 0.6))
  if kind == 'at end':
    fault.mark = 1.0
  if kind == 'pair':
    fault.task, fault.other = 'worker 0', rng.choice(ps)
  elif kind == 'in save':
    fault.task = rng.choice(['worker 0', *ps])
  elif kind == 'in restore':
    fault.task = rng.choice(ps)
    fault.other = rng.choice(['worker 0', *ps])
  elif kind in fault_files.WRITE_ERRORS:
    fault.task = 'worker 0'
  elif kind == 'replaced':
    fault.task = rng.choice([name for name in names if name not in ps])
  if kind in NEED_NO_PS or (
    not ps and kind in MAY_HIT_TWO and rng.random() < 0.25
  ):
    fault.other = rng.choice([name for name in names if name != fault.task])
  return fault


# ---- The kinds ----
def _end(run, fault, signum):
  recovery = Recovery(run, fault)
  if recovery.hit(fault.tasks, signum):
    recovery.wait_for_tasks(fault.tasks)


def _freeze(run, fault):
  recovery = Recovery(run, fault)
  if not run.freeze(fault.tasks, FREEZE_SECS):
    recovery.note_gone()
    return
  recovery.step = run.step
  is_ps = fault.task.startswith('ps')
  recovery.wait_for_steps(
    run.workers if is_ps else [run.logs[task] for task in fault.tasks]
  )


def _in_save(run, fault):
  run.read_new_events()
  if run.wait_for_event('saving'):
    _end(run, fault, signal.SIGKILL)
  else:
    Recovery(run, fault).give_up('no save came')


def _in_restore(run, fault):
  recovery = Recovery(run, fault)
  run.read_new_events()
  if not recovery.hit([fault.task], signal.SIGKILL):
    return
  if not run.wait_for_event('restoring'):
    recovery.give_up('no restore came')
    return
  num_starts = len(run.logs[fault.other].start_times)
  run.signal(fault.other, signal.SIGKILL)
  recovery.num_starts[fault.other] = num_starts
  recovery.wait_for_tasks([fault.task, fault.other])


def _in_meeting(run, fault):
  """A worker is lost, and another while all wait for the first one."""
  recovery = Recovery(run, fault)
  if not recovery.hit([fault.task], signal.SIGKILL):
    return
  if not run.wait_until(
    lambda: any(
      'waits for its successor' in text and now > recovery.time
      for log in run.workers
      for now, text in log.lines
    )
  ):
    recovery.give_up('nobody said that it waits')
    return
  run.signal(fault.other, signal.SIGKILL)
  recovery.wait_for_tasks(fault.tasks)


def _at_end(run, fault):
  run.wait_until(lambda: run.step >= run.last_step, 300)
  # The run may be over by now; whether it ends well is checked later.
  for task in fault.tasks:
    run.signal(task, signal.SIGKILL)
  fault.is_survived = True


def _fail_writes(run, fault):
  """A save fails; once that is logged, the next one goes well."""
  error = fault_files.WRITE_ERRORS[fault.kind]
  run.files.fail(fault_files.WRITES, error, name='model.ckpt')
  chief = run.logs['worker 0']
  num_lines = len(chief.lines)
  start = time.time()
  try:
    is_said = run.wait_until(
      lambda: any('cannot write' in text for text in chief.texts[num_lines:])
    )
  finally:
    run.files.mend()
  if not is_said:
    fault.note = 'a save that failed was not told'
    return
  saved, back = run.find_saved_step(), time.time()
  if run.wait_until(lambda: run.find_saved_step() > saved, 120):
    fault.recover_secs, fault.is_survived = time.time() - back, True
  else:
    fault.is_survived = not run.is_running
    fault.note = f'no checkpoint after the one that failed at {start:.0f}'


def _lose_packets(run, fault):
  run.drop_packets(list(run.logs), LOSS)
  fault.is_survived = True


def _cut_one_way(run, fault):
  recovery = Recovery(run, fault)
  run.drop_packets(fault.tasks, 1.0)
  run.wait_until(lambda: False, ONE_WAY_SECS)
  run.let_packets_through(fault.tasks)
  recovery.wait_for_steps(run.workers)


def _replace(run, fault):
  """A task is suspended for long, another replaces it, and it wakes up."""
  recovery = Recovery(run, fault)
  if not run.replace(fault.task, REPLACE_SECS):
    recovery.note_gone()
    return
  recovery.num_starts[fault.task] = 0
  recovery.wait_for_tasks([fault.task])


KINDS = {
  'kill': functools.partial(_end, signum=signal.SIGKILL),
  'term': functools.partial(_end, signum=signal.SIGTERM),
  'freeze': _freeze,
  'pair': functools.partial(_end, signum=signal.SIGKILL),
  'in save': _in_save,
  'in restore': _in_restore,
  'in meeting': _in_meeting,
  'at end': _at_end,
  **dict.fromkeys(fault_files.WRITE_ERRORS, _fail_writes),
  'loss': _lose_packets,
  'one way': _cut_one_way,
  'replaced': _replace,
}
# Kinds that need each task on a host of its own.
ON_HOSTS = {'loss', 'one way', 'replaced'}
MAY_BE_IMPOSSIBLE = ON_HOSTS | {*fault_files.WRITE_ERRORS}
NEED_PS = {'pair', 'in restore'}
NEED_NO_PS = {'in meeting'}
MAY_HIT_TWO = {'kill', 'term', 'freeze', 'in save', 'at end', 'one way'}
