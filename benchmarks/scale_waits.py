"""What a large cluster on one machine costs while its workers wait."""

import dataclasses
import os
import pathlib
import re
import signal
import tempfile
import time

import processes
import runs
import usage

from distmnist.watching import process_bytes

# Rule -> number of ps.
RULES = {'async_sgd': 1, 'sync_sgd': 1, 'ring_allreduce': 0}
# Under these, one suspended worker holds up all others in a step.
WAITING = 'sync_sgd', 'ring_allreduce'
LIMIT_SECS = 300.0
FLAGS = [
  *('--dataset=synthetic', '--synthetic_train_images=6400'),
  *('--synthetic_test_images=500', '--validation_images=500'),
  *('--model=softmax', '--log_secs=0'),
]


@dataclasses.dataclass
class Use:
  """What one task, and all tasks together, used in a period.

  Attributes:
    num_bytes: int, sent and received by the one task.
    cpu_secs: float, of the one task.
    all_cpu_secs: float, of all tasks.
    secs: float, the length of the period.
  """

  num_bytes: int
  cpu_secs: float
  all_cpu_secs: float
  secs: float

  def format(self, num_workers):
    """Returns the cells of a table."""
    each = num_workers * self.secs
    return [
      f'{self.num_bytes / each:,.0f}',
      f'{1000 * self.cpu_secs / each:.2f}',
      f'{self.all_cpu_secs / self.secs:.2f}',
    ]


def read_memory_mb(pids):
  """Returns the memory of processes; what they share counts once."""
  kib = sum(usage.read_kb(pid, 'Pss', 'smaps_rollup') for pid in pids)
  return kib * 1024 / 1e6


def measure_use(launch, pid, secs):
  """Returns the Use of the process `pid`, and of a whole launch, in `secs`."""
  pids = usage.find_descendants(launch.group.pids)
  counter = process_bytes.SocketBytes(pid)
  counter.look()
  before = usage.read_cpu_secs([pid]), usage.read_cpu_secs(pids)
  start = now = time.monotonic()
  while now < start + secs:
    launch.group.turn(min(1.0, start + secs - now))
    # Now and then, to count the bytes of connections before they close.
    counter.look()
    now = time.monotonic()
  return Use(
    sum(counter.read() or (0, 0)),
    usage.read_cpu_secs([pid]) - before[0],
    usage.read_cpu_secs(pids) - before[1],
    now - start,
  )


def wait_for_lines(launch, names, pattern):
  """Returns once each task of `names` has written `pattern`, a regex.

  Raises:
    ProcessError: the launch has ended, or it takes too long.
  """

  def have_line():
    return all(
      any(re.search(pattern, text) for text in launch.logs[name].texts)
      for name in names
    )

  if not launch.wait_until(have_line, LIMIT_SECS, every_secs=0.1):
    raise processes.ProcessError(f'not seen: {pattern}\n{launch.screen}')


def measure_waits(rule, num_workers, secs):
  """Runs a cluster whose workers wait for the last one.

  Returns:
    (Use before the first step, Use amid a step or None, MB of all, seconds
    from SIGTERM to the end).
  """
  with tempfile.TemporaryDirectory() as folder:
    held = pathlib.Path(folder) / 'held'
    os.mkfifo(held)
    with runs.Launch(
      folder,
      (RULES[rule], num_workers),
      [
        *(*FLAGS, f'--strategy={rule}', '--train_steps=1000000'),
        f'--start_timeout_secs={LIMIT_SECS}',
      ],
      ['--module=benchmarks.held_train'],
      {'HELD_BY': str(held)},
    ) as launch:
      *others, last = [name for name in launch.logs if name[0] == 'w']
      wait_for_lines(
        *(launch, others),
        f'^waiting for ({last} at|.* to initialise the variables)',
      )
      pid = launch.find_pids()['ps 0' if RULES[rule] else 'worker 0']
      memory_mb = read_memory_mb(usage.find_descendants(launch.group.pids))
      before = measure_use(launch, pid, secs)
      amid = None
      if rule in WAITING:
        with open(held, 'wb'):
          pass
        wait_for_lines(launch, [*others, last], '^step ')
        launch.signal(last, signal.SIGSTOP)
        wait_for_lines(launch, others, '^no step for ')
        amid = measure_use(launch, pid, secs)
        launch.signal(last, signal.SIGCONT)
      return before, amid, memory_mb, launch.end(signal.SIGTERM, LIMIT_SECS)
