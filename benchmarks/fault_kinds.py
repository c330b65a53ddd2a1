"""The faults: what each does to a run, and when all is well again."""

import dataclasses
import functools
import pathlib
import shutil
import signal
import subprocess
import time

FREEZE_SECS = 2.0
REPLACE_SECS = 30.0
ONE_WAY_SECS = 15.0
LOSS = 0.02
# Errors that a write of a checkpoint meets, by their numbers.
WRITE_ERRORS = {'EIO': 5, 'ENOSPC': 28, 'EDQUOT': 122}
ERROR_FILE = 'FAULTS_ERRNO_FILE'
# Calls on a checkpoint's file fail by the number in ERROR_FILE, if it has one.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fails(int fd) {
  char link[64], path[4096], number[16];
  const char *name = getenv("FAULTS_ERRNO_FILE");
  if (!name || fd < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  if (!strstr(path, "model.ckpt")) return 0;
  int file = open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  n = read(file, number, sizeof number - 1);
  close(file);
  if (n <= 0) return 0;
  number[n] = 0;
  errno = atoi(number);
  return errno != 0;
}
size_t fwrite(const void *p, size_t size, size_t n, FILE *f) {
  static size_t (*real)(const void *, size_t, size_t, FILE *);
  if (!real) real = dlsym(RTLD_NEXT, "fwrite");
  return f != stdout && f != stderr && fails(fileno(f)) ? 0
                                                        : real(p, size, n, f);
}
int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  return fails(fd) ? -1 : real(fd);
}
"""


class CannotError(Exception):
  """This machine cannot have this fault; the text says why."""


@dataclasses.dataclass
class Fault:
  """One fault and what came of it.

  Attributes:
    task: str, such as 'ps 0': the one that is hit, or the first of them.
    kind: str, of KINDS.
    other: str, the second task of a kind that hits two.
    mark: float, the part of the steps after which it comes.
    recover_secs: float, None if it never recovered.
    steps_lost: int, global steps that had to be done again.
    is_survived: bool; the end of the run has its say too.
    note: str, what went wrong.
    violations: list of str, what the history says that must not be.
  """

  task: str
  kind: str
  other: str = ''
  mark: float = 0.0
  recover_secs: float | None = None
  steps_lost: int = 0
  is_survived: bool = False
  note: str = ''
  violations: list = dataclasses.field(default_factory=list)


def inject(run, fault):
  """Does it, and waits until all is well again; fills in `fault`."""
  run.look()
  KINDS[fault.kind](run, fault)


def draw(rng, names, kinds):
  """Returns a Fault by a random.Random: its kind, its tasks, its moment.

  Args:
    names: list of str, the tasks of the run; without ps no kind is drawn that
      needs one.
  """
  ps = [name for name in names if name.startswith('ps')]
  kind = rng.choice([k for k in kinds if ps or k not in NEED_PS])
  fault = Fault(rng.choice(names), kind, mark=rng.uniform(0.05, 0.6))
  if kind == 'pair':
    fault.task, fault.other = 'worker 0', rng.choice(ps)
  elif kind == 'in save':
    fault.task = rng.choice(['worker 0', *ps])
  elif kind == 'in restore':
    fault.task = rng.choice(ps)
    fault.other = rng.choice(['worker 0', *ps])
  elif kind in WRITE_ERRORS:
    fault.task = 'worker 0'
  elif kind == 'replaced':
    fault.task = rng.choice([name for name in names if name not in ps])
  return fault


# ---- What all have in common ----
@dataclasses.dataclass
class _Before:
  """What was, before the fault."""

  time: float
  saved: int
  seen: int
  num_starts: dict


def _look_before(run):
  run.look()
  starts = {name: len(log.start_times) for name, log in run.logs.items()}
  return _Before(time.time(), run.find_saved_step(), run.step, starts)


def _hit(run, fault, tasks, signum):
  """Signals `tasks`, all or none left; returns whether there was one."""
  hit = [name for name in tasks if run.signal(name, signum)]
  if not hit:
    fault.is_survived = run.wait_until(lambda: not run.is_running)
    fault.note = 'gone before its fault'
  return bool(hit)


def _recover(run, fault, before, tasks):
  """Waits until those of `tasks` that were ended are back and all go on."""

  def are_started():
    return all(
      len(run.logs[t].start_times) > before.num_starts[t] for t in tasks
    )

  if not run.wait_until(are_started):
    fault.is_survived = not run.is_running
    fault.note = 'not started again'
    return
  backs = {t: run.logs[t].start_times[before.num_starts[t]] for t in tasks}
  lost_ps = any(task.startswith('ps') for task in tasks)

  def is_well():
    for name, log in run.logs.items():
      if name in backs and name.startswith('worker'):
        if log.step_time <= backs[name]:
          return False
      elif lost_ps and name.startswith('worker'):
        # It has to find out, and to make a step from the checkpoint.
        if not any(t > before.time for t, _, _ in log.recoveries):
          return False
        if log.step_time <= log.recoveries[-1][0]:
          return False
    return True

  _wait_until_well(run, fault, before, max(backs.values()), is_well)


def _wait_until_well(run, fault, before, back, is_well):
  """Waits, and fills in what was lost since `before` and for how long."""
  if not run.wait_until(is_well):
    # How the run has ended is looked at later.
    fault.is_survived = not run.is_running
    fault.note = 'no next step'
    if fault.is_survived:
      fault.note += ', as the training was over'
    return
  fault.recover_secs = time.time() - back
  since = [r for w in run.workers for r in w.recoveries if r[0] > before.time]
  fault.steps_lost = max([0, *(lost for _, _, lost in since)])
  chief = run.logs['worker 0']
  if len(chief.start_times) > before.num_starts['worker 0']:
    fault.steps_lost = max(fault.steps_lost, before.seen - chief.step)
  oldest = min([run.step, *(step for _, step, _ in since)])
  if oldest < before.saved:
    fault.note = f'step {before.saved} was saved, but {oldest} came back'
    return
  fault.is_survived = True


def _wait_for_event(run, kind, limit_secs=30.0):
  """Waits for the next event of that kind in the history; whether it came."""
  run.read_new_events()
  return run.wait_until(
    lambda: any(e['event'] == kind for e in run.read_new_events()),
    limit_secs,
    every_secs=0.002,
  )


# ---- The kinds ----
def _end(run, fault, signum):
  before = _look_before(run)
  if _hit(run, fault, [fault.task], signum):
    _recover(run, fault, before, [fault.task])


def _freeze(run, fault):
  before = _look_before(run)
  if not run.freeze(fault.task, FREEZE_SECS):
    _hit(run, fault, [], signal.SIGCONT)
    return
  back, before.seen = time.time(), run.step
  logs = run.workers if fault.task[0] == 'p' else [run.logs[fault.task]]

  def is_well():
    return all(log.step_time > back for log in logs)

  _wait_until_well(run, fault, before, back, is_well)


def _pair(run, fault):
  before = _look_before(run)
  tasks = [fault.task, fault.other]
  if _hit(run, fault, tasks, signal.SIGKILL):
    _recover(run, fault, before, tasks)


def _in_save(run, fault):
  if not _wait_for_event(run, 'saving'):
    fault.is_survived, fault.note = not run.is_running, 'no save came'
    return
  _end(run, fault, signal.SIGKILL)


def _in_restore(run, fault):
  before = _look_before(run)
  run.read_new_events()
  if not _hit(run, fault, [fault.task], signal.SIGKILL):
    return
  if not _wait_for_event(run, 'restoring'):
    fault.is_survived, fault.note = not run.is_running, 'no restore came'
    return
  num_starts = len(run.logs[fault.other].start_times)
  run.signal(fault.other, signal.SIGKILL)
  before.num_starts[fault.other] = num_starts
  _recover(run, fault, before, [fault.task, fault.other])


def _at_end(run, fault):
  run.wait_until(lambda: run.step >= run.last_step, 300)
  # It may be over by now; whether it ends well is looked at later.
  run.signal(fault.task, signal.SIGKILL)
  fault.is_survived = True


def _fail_writes(run, fault):
  """A save fails, once it is noticed the next one goes well."""
  error = run.folder / 'errno'
  error.write_text(str(WRITE_ERRORS[fault.kind]))
  chief = run.logs['worker 0']
  num_lines = len(chief.lines)
  start = time.time()
  try:
    is_said = run.wait_until(
      lambda: any('cannot write' in text for _, text in chief.lines[num_lines:])
    )
  finally:
    error.unlink()
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
  run.drop_packets(run.names, LOSS)
  fault.is_survived = True


def _cut_one_way(run, fault):
  before = _look_before(run)
  run.drop_packets([fault.task], 1.0)
  run.wait_until(lambda: False, ONE_WAY_SECS)
  run.let_packets_through([fault.task])
  back = time.time()

  def is_well():
    return all(log.step_time > back for log in run.workers)

  _wait_until_well(run, fault, before, back, is_well)


def _replace(run, fault):
  """It stands still for long, another takes its place, and it wakes up."""
  before = _look_before(run)
  if not run.replace(fault.task, REPLACE_SECS):
    _hit(run, fault, [], signal.SIGCONT)
    return
  before.num_starts[fault.task] = 0
  _recover(run, fault, before, [fault.task])


KINDS = {
  'kill': functools.partial(_end, signum=signal.SIGKILL),
  'term': functools.partial(_end, signum=signal.SIGTERM),
  'freeze': _freeze,
  'pair': _pair,
  'in save': _in_save,
  'in restore': _in_restore,
  'at end': _at_end,
  **dict.fromkeys(WRITE_ERRORS, _fail_writes),
  'loss': _lose_packets,
  'one way': _cut_one_way,
  'replaced': _replace,
}
# Those whose tasks are on hosts of their own.
ON_HOSTS = {'loss', 'one way', 'replaced'}
NEED_PS = {'pair', 'in restore'}


@functools.cache
def compile_shim(folder):
  """Returns the path of a library that makes writes of checkpoints fail.

  Args:
    folder: str, where it is made.

  Raises:
    CannotError: there is no C compiler.
  """
  compiler = shutil.which('cc')
  if not compiler:
    raise CannotError('no C compiler (cc) on this machine')
  library = pathlib.Path(folder) / 'shim.so'
  subprocess.run(
    [compiler, '-shared', '-fPIC', '-x', 'c', '-o', str(library), '-', '-ldl'],
    input=SHIM,
    text=True,
    check=True,
  )
  return str(library)


def make_env(kind, folder):
  """Returns the variables, {name: value}, that the tasks need for a kind.

  Raises:
    CannotError: this machine cannot have it.
  """
  if kind not in WRITE_ERRORS:
    return {}
  return {
    'LD_PRELOAD': compile_shim(str(folder)),
    ERROR_FILE: str(pathlib.Path(folder) / 'errno'),
  }
