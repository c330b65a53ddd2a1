"""A cluster on links of its own: the cases, and what a run yields."""

import dataclasses
import re
import subprocess
import sys
import tempfile
import time

from lib import network as network_lib
from lib import processes, usage

NUM_WORKERS = 3
PERIOD = 10
# How often the logs are read.
TICK_SECS = 0.01
COMMON = [
  *('--dataset=synthetic', '--synthetic_image_size=32'),
  *('--synthetic_channels=3', '--synthetic_train_images=3000'),
  *('--synthetic_test_images=100', '--validation_images=0'),
  *('--batch_size=1', '--optimizer=sgd', '--learning_rate=0.001'),
  *('--train_steps=1000000', '--log_secs=0', '--start_timeout_secs=300'),
]


@dataclasses.dataclass(frozen=True)
class Case:
  """One kind of cluster.

  Attributes:
    title: str.
    num_ps: int.
    flags: list of str, train's.
    steps: int, local steps of a worker to measure, with vgg19.
    period: int, T; whole periods are measured.
  """

  title: str
  num_ps: int
  flags: list
  steps: int
  period: int = 1


IN_TURN = ['--partitioner=none', '--placement=round_robin']
SYNC = ['--strategy=sync_sgd']
SHARD = [*SYNC, '--sync_barrier=shard']
RING = ['--strategy=ring_allreduce']
CASES = {
  'one_ps': Case('sync, 1 ps', 1, SYNC, 1),
  'round_robin': Case('sync, 2 ps in turn', 2, [*SYNC, *IN_TURN], 1),
  'balanced': Case('sync, 2 ps balanced', 2, SYNC, 1),
  'shard': Case('sync, 2 ps, shard barrier', 2, SHARD, 3),
  'balanced_3': Case('sync, 3 ps balanced', 3, SYNC, 1),
  'shard_3': Case('sync, 3 ps, shard barrier', 3, SHARD, 3),
  'ring': Case('ring, in buckets', 0, RING, 3),
  'ring_whole': Case('ring, all at once', 0, [*RING, '--bucket_mib=0'], 3),
  'async_one_ps': Case('async, 1 ps', 1, [], 2),
  'async_round_robin': Case('async, 2 ps in turn', 2, IN_TURN, 2),
  'async_balanced': Case('async, 2 ps balanced', 2, [], 3),
  'pull_ahead': Case('async, 2 ps, pull ahead', 2, ['--pull_ahead=1'], 3),
  'float16': Case('same, float16', 2, ['--wire_dtype=float16'], 4),
  'agn': Case(
    f'agn, T={PERIOD}, 2 ps balanced',
    2,
    ['--strategy=agn', f'--communication_period={PERIOD}'],
    2 * PERIOD,
    PERIOD,
  ),
}


def make_flags(case, args):
  """Returns train's flags, a list of str, that all tasks get."""
  return [*COMMON, f'--model={args.model}', *case.flags]


def measure(case, args):
  """Runs a case once; returns its result, a dict."""
  num_steps = round_up(args.steps or case.steps, case.period)
  with (
    tempfile.TemporaryDirectory() as folder,
    network_lib.Network(case.num_ps + NUM_WORKERS, args.mbits) as network,
    processes.Group(TICK_SECS) as group,
  ):
    deadline = time.monotonic() + args.limit_secs
    tasks = network_lib.make_tasks(
      *(network, case.num_ps, NUM_WORKERS), make_flags(case, args)
    )
    logs = [
      processes.Log(start_task(group, network, i, task, folder))
      for i, task in enumerate(tasks)
    ][case.num_ps :]

    def read():
      now = time.monotonic()
      return now, network.read_bytes(), usage.read_cpu_secs(group.pids)

    wait_for_steps(group, logs, 1, deadline)
    start, bytes_before, cpu_before = read()
    wait_for_steps(group, logs, num_steps + 1, deadline)
    end, bytes_after, cpu_after = read()
  marks = [log.step_times for log in logs]
  moved = subtract(bytes_after, bytes_before)
  return {
    'step_secs': compute_step_secs(marks, case.period),
    'busiest': compute_busiest(moved, end - start, args.mbits),
    'cores_busy': (cpu_after - cpu_before) / (end - start),
    'marks': marks,
    'moved': moved,
    'secs': end - start,
  }


def start_task(group, network, host, task, folder):
  """Starts a task on a host; returns the path of its log, in `folder`."""
  process = make_process(network, host, task, folder, is_server=True)
  return group.start(process).log


def make_process(network, host, task, folder, is_server=False):
  """Returns the processes.Process of a task on a host, with its log."""
  return processes.Process(
    task.name,
    network.wrap(host, task.argv),
    processes.task_log(folder, task.name),
    # With a GPU, this would not measure the cores.
    env={'CUDA_VISIBLE_DEVICES': ''},
    is_server=is_server,
  )


def wait_for_steps(group, logs, num_steps, deadline):
  """Returns once each of `logs` has `num_steps` steps.

  Raises:
    ProcessError: a task has ended, or `deadline`, by time.monotonic(), has
      passed.
  """

  def have_made():
    group.check()
    for log in logs:
      log.read()
    return all(len(log.step_times) >= num_steps for log in logs)

  if not group.wait_until(have_made, deadline - time.monotonic()):
    late = min(logs, key=lambda log: len(log.step_times))
    lines = [f'no step in time; {late.path.stem}:']
    lines += [text for _, text in late.lines[-15:]]
    raise processes.ProcessError('\n'.join(lines))


def round_up(number, period):
  return -(-number // period) * period


def subtract(later, earlier):
  """Returns the differences of two lists of pairs of int."""
  return [(a - c, b - d) for (a, b), (c, d) in zip(later, earlier, strict=True)]


def compute_step_secs(marks, period):
  """Returns the seconds of a local step, from the workers' mean speed.

  Args:
    marks: list with, per worker, the times at which its steps ended.
    period: int, T; an incomplete period at the end does not count.
  """
  speed = 0.0
  for times in marks:
    steps = (len(times) - 1) // period * period
    speed += steps / (times[steps] - times[0])
  return len(marks) / speed


def compute_busiest(moved, secs, mbits):
  """Returns what the busiest link carried one way, as a part of its rate.

  Args:
    moved: list of (bytes from a host, bytes to it).
    secs: float, how long that took.
    mbits: int, the rate of a link.
  """
  return max(map(max, moved)) * 8e-6 / secs / mbits


def read_plan(case, args):
  """Returns (bytes pulled in a step, bytes pushed, least seconds a step)."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.plan', f'--mbits={args.mbits}'),
      *(f'--num_ps={case.num_ps}', f'--num_workers={NUM_WORKERS}'),
      *make_flags(case, args),
    ],
    cwd=processes.REPO,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise processes.ProcessError(f'no plan: {done.stderr.strip()}')
  return parse_plan(done.stdout)


def parse_plan(text):
  """Reads the last lines of distmnist.plan; see `read_plan`."""
  numbers = re.search(
    r'pulls ([\d,]+) and pushes ([\d,]+)\n.*: ([\d,.]+) ms a step at least',
    text,
  ).groups()
  pulled, pushed, msecs = (float(n.replace(',', '')) for n in numbers)
  return pulled, pushed, msecs / 1000
