"""The peers that are scripts of benchmarks/peers, one process per task."""

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys

from lib import processes
from lib.peer_kinds import FOLDER, NUM_WORKERS, common, measure_run


class SkippedError(Exception):
  """A peer cannot run here; the text says why."""


@dataclasses.dataclass
class Script:
  """A script of benchmarks/peers, one process per task.

  Attributes:
    file: str.
    num_ps: int.
    has_coordinator: bool, whether one process alone knows of the steps; the
      workers are then servers like the ps.
    is_torch: bool.
    steps_per_call: int.
    num_workers: int.
    flags: tuple of str, the script's.
  """

  file: str
  num_ps: int = 0
  has_coordinator: bool = False
  is_torch: bool = False
  steps_per_call: int = 1
  num_workers: int = NUM_WORKERS
  flags: tuple = ()

  def run(self, work):
    """Runs it to its end; see `measure_run`."""
    (work.folder / 'counts').write_bytes(bytes(8 * self.num_workers))
    started = self._make_processes(work)
    start, end, used = measure_run(started, work.limit_secs)
    records = [
      json.loads((work.folder / f'{process.name}.json').read_text())
      for process in started
      if not process.is_server
    ]
    firsts = [record['first_step_time'] for record in records]
    snapshots = []
    for path in work.folder.glob('snapshot_*.npz'):
      with common.np.load(path) as file:
        snapshots.append((float(file['time']) - start, str(path)))
    return {
      'examples_per_sec': compute_images_per_sec([r['marks'] for r in records]),
      'first_step_secs': min(firsts) - start,
      'all_step_secs': None if self.has_coordinator else max(firsts) - start,
      'gone_secs': end - max(record['marks'][-1][0] for record in records),
      'is_killed': any(process.is_server for process in started),
      'test_accuracy': records[0]['test_accuracy'],
      'snapshots': sorted(snapshots),
      **used,
    }

  def _make_processes(self, work):
    """Returns the list of processes.Process, servers first."""
    python = sys.executable
    if self.is_torch:
      python = work.torch_python
      check_torch(python)
    hosts = pick_addresses(self.num_ps + self.num_workers + 1)
    *hosts, coordinator = hosts
    ps, workers = hosts[: self.num_ps], hosts[self.num_ps :]
    steps = -(-work.steps // self.steps_per_call) * self.steps_per_call
    shared = [
      *(python, str(FOLDER / self.file), f'--net={work.net}'),
      *(f'--data={work.data}', f'--folder={work.folder}'),
      *(f'--workers={",".join(workers)}', f'--steps={steps}'),
      *(f'--snapshot_steps={work.snapshot_steps}',),
      *(f'--steps_per_call={self.steps_per_call}', *self.flags),
    ]
    if ps:
      shared.append(f'--ps={",".join(ps)}')
    tasks = [('ps', i, True) for i in range(self.num_ps)]
    tasks += [
      ('worker', i, self.has_coordinator) for i in range(self.num_workers)
    ]
    if self.has_coordinator:
      shared.append(f'--coordinator={coordinator}')
      tasks.append(('coordinator', 0, False))
    return [
      processes.Process(
        f'{job}_{i}',
        [*shared, f'--job={job}', f'--task={i}'],
        work.folder / f'{job}_{i}.log',
        is_server=is_server,
        env={'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'},
      )
      for job, i, is_server in tasks
    ]


def pick_addresses(count):
  """Returns `count` addresses of this host that were free a moment ago."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for s in sockets:
      s.bind(('127.0.0.1', 0))
    return [f'127.0.0.1:{s.getsockname()[1]}' for s in sockets]


def check_torch(python):
  """Raises SkippedError if `python` cannot import torch."""
  try:
    done = subprocess.run(
      [python, '-c', 'import numpy, torch.distributed'],
      capture_output=True,
      text=True,
    )
  except OSError as error:
    raise SkippedError(f'no such Python: {error.strerror}') from error
  if done.returncode:
    [*_, reason] = done.stderr.strip().splitlines() or ['it fails']
    raise SkippedError(
      f'torch cannot be imported ({reason}): install the extra bench, or give'
      ' --torch_python'
    )


def compute_images_per_sec(marks):
  """Returns images per second of all workers while all of them train.

  Args:
    marks: list with, per worker, [[time, images so far], ...], ascending.

  Returns:
    float; None if no time is common to all.
  """
  start = max(worker[0][0] for worker in marks)
  end = min(worker[-1][0] for worker in marks)
  if end <= start:
    return None
  images = 0.0
  for worker in marks:
    times, counts = zip(*worker, strict=True)
    at_start, at_end = common.np.interp([start, end], times, counts)
    images += at_end - at_start
  return float(images / (end - start))
