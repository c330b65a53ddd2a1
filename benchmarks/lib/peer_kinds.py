"""A run of a peer, and a rule of distmnist as one of the peers."""

import dataclasses
import json
import pathlib
import sys
import time

from lib import processes, runs, usage

FOLDER = processes.REPO / 'benchmarks' / 'peers'
sys.path.insert(0, str(FOLDER))
import common  # noqa: E402

NUM_WORKERS = 2


@dataclasses.dataclass
class Work:
  """One run of one peer.

  Attributes:
    net: str.
    steps: int, of each worker.
    snapshot_steps: int, of all workers, from one snapshot to the next; 0 for
      none.
    data: path of the folder with the images, unpacked.
    folder: path of a new folder for logs, records and snapshots.
    torch_python: str, the Python that has torch.
    limit_secs: float, for the run.
  """

  net: str
  steps: int
  snapshot_steps: int
  data: pathlib.Path
  folder: pathlib.Path
  torch_python: str
  limit_secs: float


def measure_run(started, limit_secs, on_tick=lambda: None):
  """Runs processes to their end.

  Args:
    started: list of processes.Process.
    limit_secs: float.
    on_tick: callable, called twenty times a second.

  Returns:
    (start, end, used): time.monotonic() at the command and when nothing was
    left; dict of wall_secs, peak_mb and cpu_secs.

  Raises:
    processes.ProcessError: one of them has failed, or they took too long.
  """
  group, memory = processes.Group(), usage.PeakMemory()

  def look():
    memory.look(group.pids)
    on_tick()

  start, end = group.run(started, limit_secs, look)
  used = {
    'wall_secs': end - start,
    'peak_mb': memory.megabytes,
    'cpu_secs': group.cpu_secs,
  }
  return start, end, used


@dataclasses.dataclass
class Distmnist:
  """A rule of distmnist, run by its launcher.

  Attributes:
    num_ps: int.
    flags: list of str, train's.
    batches_per_update: int, the batches of all workers in a global step.
    num_launches: int, clusters run at the same time.
    num_workers: int, per cluster.
  """

  num_ps: int
  flags: list
  batches_per_update: int = 1
  num_launches: int = 1
  num_workers: int = NUM_WORKERS

  def run(self, work):
    """Runs it to its end; see `measure_run`."""
    logdirs = [work.folder / f'run_{i}' for i in range(self.num_launches)]
    logs = [
      processes.Log(processes.task_log(folder / 'logs', f'worker {i}'))
      for folder in logdirs
      for i in range(self.num_workers)
    ]
    started = [
      processes.Process(
        f'launch_{i}',
        runs.make_command(
          self.num_ps,
          self.num_workers,
          [*self._make_flags(work), f'--logdir={folder}'],
        ),
        work.folder / f'launch_{i}.log',
        has_tasks=True,
        env={'DISTMNIST_DATA_DIR': str(work.data)},
      )
      for i, folder in enumerate(logdirs)
    ]
    start_wall = time.time()
    start, end, used = measure_run(
      started, work.limit_secs, lambda: [log.read() for log in logs]
    )
    reports = [json.loads((d / 'report.json').read_text()) for d in logdirs]
    workers = [w for report in reports for w in report['workers']]
    batch_size = common.NETS[work.net].batch_size
    snapshots = [
      (path.stat().st_mtime - start_wall, str(path.with_suffix('')))
      for path in logdirs[0].glob('model.ckpt-*.index')
    ]
    firsts = [log.step_times[0] for log in logs]
    return {
      'examples_per_sec': sum(
        w['timed_steps'] * batch_size / w['train_secs'] for w in workers
      ),
      'first_step_secs': min(firsts) - start,
      'all_step_secs': max(firsts) - start,
      'gone_secs': end - max(log.step_times[-1] for log in logs),
      'is_killed': False,
      'test_accuracy': min(r['test_accuracy'] for r in reports),
      'snapshots': sorted(snapshots),
      **used,
    }

  def _make_flags(self, work):
    """Returns train's flags, a list of str."""
    net = common.NETS[work.net]
    updates = -(-work.steps * self.num_workers // self.batches_per_update)
    flags = [
      *('--dataset=mnist', '--validation_images=0', f'--model={work.net}'),
      *(f'--batch_size={net.batch_size}', '--optimizer=adam'),
      *(f'--learning_rate={net.learning_rate}', f'--train_steps={updates}'),
      *('--intra_op_parallelism_threads=1', '--inter_op_parallelism_threads=2'),
      *('--save_secs=86400', *self.flags),
    ]
    if work.net == 'mlp':
      flags.append('--initializer=glorot')
    if work.snapshot_steps:
      every = max(1, work.snapshot_steps // self.batches_per_update)
      flags += [f'--save_steps={every}', '--keep_checkpoints=100000']
    return flags
