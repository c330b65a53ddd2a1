"""distmnist beside its peers: the same net, batch, data, machine and run.

  python benchmarks/peers.py [--nets=mlp,cnn] [--peers=NAME,...] [--steps=N]
      [--repeats=3] [--to_accuracy] [--torch_python=PATH] [--out=FOLDER]

Two workers each, on 127.0.0.1, on the CPU; one repeat runs all peers one after
the other, so that a ratio is one of neighbours. The peers are small scripts in
benchmarks/peers:

  ceiling        two trainings of distmnist, alone, at the same time;
                 ceiling_10 with 10 steps in a session.run
  async_sgd ...  distmnist's rules, by `python -m distmnist.launch`; downpour
                 and agn exchange with the ps every 10 steps (T=10);
                 async_sgd_10 ... have 10 steps in a session.run, too;
                 async_sgd_float16 and sync_sgd_float16 move half the bytes
  classic        the script of the tutorials: feed_dict, asynchronous, 1 ps
  tf2_ps         ParameterServerStrategy: coordinator, 1 ps; tf2_ps_10 has 10
                 steps a call, as its guide advises
  tf2_mirrored   MultiWorkerMirroredStrategy; tf2_mirrored_10 likewise
  torch_ddp      PyTorch, DistributedDataParallel over gloo

What is the same: MNIST, all 60,000 images, unpacked, uint8 in memory; the mlp
(784-100-10, sigmoid, Glorot, batch 100, Adam 0.003) and the cnn (batch 128,
Adam 0.001, dropout 0.5); one thread for computing in each worker. TensorFlow
has intra_op 1 and inter_op 2, distmnist's own numbers: with inter_op 1 a step
that waits for the ps blocks what could run meanwhile; the servers of tf2_ps
have inter_op 3, the least that its guide allows. PyTorch has OMP_NUM_THREADS=1.
A worker reads a shard of its own; those of distmnist share out each epoch,
batch by batch; and under tf2_ps each reads the whole set in an order of its
own, since that API makes all workers the same input. TensorFlow 2 has its
fused Adam: the optimizers of Keras are slower, and know no ps.

What is measured, medians over the repeats:

  images/s       over the time in which all workers train, after their first
                 step, summed over the workers. For distmnist by report.json,
                 for the others by their time stamps. --steps counts the steps
                 of a worker; an asynchronous classic worker that starts late
                 is waited for, and nothing counts before. tf2_ps is measured
                 by its coordinator after 20 calls.
  first step     seconds from the command until some worker, and until every
                 worker, has made a step; under tf2_ps the coordinator does not
                 know who did. Read off the logs of distmnist every 50 ms.
  gone           seconds from the last step until no process is left. All peers
                 compute the accuracy on the 10,000 test images in it;
                 distmnist also saves and writes its report. A server that
                 never ends is killed by us after the workers: `killed`.
  peak MB        the sum of all processes' peak resident memory, sampled twice
                 a second (VmHWM). Pages that forked tasks share are counted in
                 each.
  CPU s          of all processes, from start to end, as the kernel counts it.

With --to_accuracy each peer runs --accuracy_repeats times more, for
--epochs passes of all workers over the data. Every 20,000 (mlp) or 6,400 (cnn)
images its chief keeps the weights with the time: distmnist by --save_steps, as
checkpoints that hold Adam's slots too; the others by numpy.savez. When the run
is over one program computes the test accuracy of all, so that no evaluation
takes time from a training. The seconds are those from the command to the first
weights that reach 97 % (mlp) or 99 % (cnn).

A peer that fails is named with its last lines, and the exit code is 1; the
others go on. Who lacks PyTorch has that peer skipped: see the extra `bench`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import runs

FOLDER = pathlib.Path(__file__).with_suffix('')
sys.path[:0] = [str(FOLDER), str(runs.REPO)]
import common  # noqa: E402

from distmnist import cli  # noqa: E402

NUM_WORKERS = 2
PERIOD = 10
# Local steps of a worker that take 10 to 30 s; --steps.
STEPS = {'mlp': 6000, 'cnn': 60}
EPOCHS = {'mlp': 8, 'cnn': 4}
TARGETS = {'mlp': 0.97, 'cnn': 0.99}
SNAPSHOT_IMAGES = {'mlp': 20000, 'cnn': 6400}
NUM_IMAGES = 60000
TICK_SECS = 0.05
SAMPLE_SECS = 0.5
# From SIGTERM to SIGKILL; the launcher of distmnist stops its tasks meanwhile.
GRACE_SECS = 20.0


class PeerError(Exception):
  """A peer has failed; the text says how, with its last lines."""


class SkippedError(Exception):
  """A peer cannot run here; the text says why."""


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


# ---- Processes ----
class Stop:
  """Remembers the first signal; looked at where nothing is half done."""

  def __init__(self):
    self._signum = None

  def listen(self):
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
      # One that is ignored, as under nohup, stays so.
      if signal.getsignal(signum) != signal.SIG_IGN:
        signal.signal(signum, self._note)

  def _note(self, signum, _):
    self._signum = self._signum or signum

  def check(self):
    if self._signum:
      raise SystemExit(128 + self._signum)


STOP = Stop()


@dataclasses.dataclass
class Process:
  """A process to start.

  Attributes:
    name: str, also of its log.
    argv: list of str.
    is_server: bool, never ends by itself: killed once the others have ended.
    has_tasks: bool, gets SIGTERM before SIGKILL, as it has tasks to stop.
    env: dict of str, beyond ours.
  """

  name: str
  argv: list
  is_server: bool = False
  has_tasks: bool = False
  env: dict = dataclasses.field(default_factory=dict)


class Group:
  """The processes of a run, ended by their handles whatever happens."""

  def __init__(self, processes, folder):
    """
    Args:
      processes: list of Process.
      folder: path, for a log each.
    """
    self._processes = processes
    self._folder = folder
    self._running = {}  # Name -> Popen.
    self._selector = selectors.DefaultSelector()
    self._peaks = {}  # Pid -> kB.
    self._next_sample = 0.0
    self.cpu_secs = 0.0
    self.codes = {}

  @property
  def peak_mb(self):
    return sum(self._peaks.values()) / 1000

  def run(self, limit_secs, on_tick=lambda: None):
    """Runs all to their end.

    Args:
      limit_secs: float.
      on_tick: callable, called twenty times a second.

    Returns:
      (start, start_wall, end): time.monotonic() at the command, time.time() at
      the command, time.monotonic() when nothing was left.

    Raises:
      PeerError: one of them failed, or they took too long.
    """
    start, start_wall = time.monotonic(), time.time()
    try:
      for process in self._processes:
        STOP.check()
        self._start(process)
      clients = [p.name for p in self._processes if not p.is_server]
      while any(name in self._running for name in clients):
        STOP.check()
        self._turn()
        on_tick()
        self._check(start, limit_secs)
    finally:
      self._end()
      on_tick()
      self._selector.close()
    return start, start_wall, time.monotonic()

  def _start(self, process):
    with open(self._log_path(process.name), 'wb') as log:
      popen = subprocess.Popen(
        process.argv,
        cwd=runs.REPO,
        env={**os.environ, **process.env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # The terminal's Ctrl-C is ours to pass on.
        start_new_session=True,
      )
    self._running[process.name] = popen
    pidfd = os.pidfd_open(popen.pid)
    self._selector.register(pidfd, selectors.EVENT_READ, process.name)

  def _turn(self, secs=TICK_SECS):
    """Waits for `secs` or an end, and takes note of it."""
    if time.monotonic() >= self._next_sample:
      self._next_sample = time.monotonic() + SAMPLE_SECS
      self._sample()
    for key, _ in self._selector.select(secs):
      self._selector.unregister(key.fd)
      os.close(key.fd)
      popen = self._running.pop(key.data)
      # With what its own children used, if it waited for them.
      _, status, usage = os.wait4(popen.pid, 0)
      popen.returncode = os.waitstatus_to_exitcode(status)
      self.codes[key.data] = popen.returncode
      self.cpu_secs += usage.ru_utime + usage.ru_stime

  def _check(self, start, limit_secs):
    for process in self._processes:
      code = self.codes.get(process.name)
      if code or (process.is_server and code is not None):
        raise PeerError(
          f'{process.name} ended with {code}:\n{self._last_lines(process.name)}'
        )
    if time.monotonic() - start > limit_secs:
      [name, *_] = self._running
      raise PeerError(
        f'still ran after {limit_secs:g} s; {name}:\n{self._last_lines(name)}'
      )

  def _end(self):
    """Ends what still runs."""
    for process in self._processes:
      if process.has_tasks and process.name in self._running:
        self._running[process.name].terminate()
      elif process.name in self._running:
        # TensorFlow 2 takes SIGTERM for news of a preemption, and stays.
        self._running[process.name].kill()
    deadline = time.monotonic() + GRACE_SECS
    while self._running and time.monotonic() < deadline:
      self._turn()
    for popen in self._running.values():
      popen.kill()
    while self._running:
      self._turn()

  def _sample(self):
    """Takes the peak memory of all processes and their descendants."""
    for pid in find_descendants(p.pid for p in self._running.values()):
      peak = read_peak(pid)
      self._peaks[pid] = max(self._peaks.get(pid, 0), peak)

  def _log_path(self, name):
    return self._folder / f'{name}.log'

  def _last_lines(self, name, num_lines=15):
    text = self._log_path(name).read_text(errors='replace')
    lines = [line for line in text.splitlines() if line.strip()]
    return '\n'.join(lines[-num_lines:])


def read_peak(pid):
  """Returns the peak resident memory in kB; 0 of a process that is gone."""
  try:
    lines = pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
  except OSError:
    return 0
  found = [line.split()[1] for line in lines if line.startswith('VmHWM:')]
  return int(found[0]) if found else 0


def find_descendants(pids):
  """Returns the set of `pids` and all that they started, and so on."""
  children = {}
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):
      # After the name, which may have anything in it: state, parent.
      parent = int(path.read_text().rpartition(')')[2].split()[1])
      children.setdefault(parent, []).append(int(path.parts[2]))
  found, todo = set(), list(pids)
  while todo:
    pid = todo.pop()
    found.add(pid)
    todo += children.get(pid, [])
  return found


def pick_addresses(count):
  """Returns `count` addresses of this host that were free a moment ago."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for s in sockets:
      s.bind(('127.0.0.1', 0))
    return [f'127.0.0.1:{s.getsockname()[1]}' for s in sockets]


# ---- The peers ----
class Log:
  """The step lines of a task of distmnist, with the time we saw them."""

  def __init__(self, path):
    self._path = path
    self._position = 0
    self.first = self.last = None

  def read(self):
    if not self._path.exists():
      return
    with open(self._path, 'rb') as file:
      file.seek(self._position)
      data = file.read()
    whole = data[: data.rfind(b'\n') + 1]
    self._position += len(whole)
    if any(line.startswith(b'step ') for line in whole.split(b'\n')):
      self.last = time.monotonic()
      self.first = self.first or self.last


@dataclasses.dataclass
class Distmnist:
  """A rule of distmnist, run by its launcher.

  Attributes:
    num_ps: int.
    flags: list of str, of train.
    batches_per_update: int, the batches of all workers in a global step.
    num_launches: int, clusters at the same time.
    num_workers: int, of a cluster.
  """

  num_ps: int
  flags: list
  batches_per_update: int = 1
  num_launches: int = 1
  num_workers: int = NUM_WORKERS

  def run(self, work):
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
    logdirs = [work.folder / f'run_{i}' for i in range(self.num_launches)]
    logs = [
      Log(folder / 'logs' / f'worker_{i}.log')
      for folder in logdirs
      for i in range(self.num_workers)
    ]
    group = Group(
      [
        Process(
          f'launch_{i}',
          [
            *(sys.executable, '-m', 'distmnist.launch'),
            *(f'--num_ps={self.num_ps}', f'--num_workers={self.num_workers}'),
            *('--', *flags, f'--logdir={folder}'),
          ],
          has_tasks=True,
          env={'DISTMNIST_DATA_DIR': str(work.data)},
        )
        for i, folder in enumerate(logdirs)
      ],
      work.folder,
    )
    start, start_wall, end = group.run(
      work.limit_secs, lambda: [log.read() for log in logs]
    )
    reports = [json.loads((d / 'report.json').read_text()) for d in logdirs]
    workers = [w for report in reports for w in report['workers']]
    snapshots = [
      (path.stat().st_mtime - start_wall, str(path.with_suffix('')))
      for path in logdirs[0].glob('model.ckpt-*.index')
    ]
    return {
      'images_per_sec': sum(
        w['timed_steps'] * net.batch_size / w['train_secs'] for w in workers
      ),
      'first_step_secs': min(log.first for log in logs) - start,
      'all_step_secs': max(log.first for log in logs) - start,
      'gone_secs': end - max(log.last for log in logs),
      'wall_secs': end - start,
      'is_killed': False,
      'peak_mb': group.peak_mb,
      'cpu_secs': group.cpu_secs,
      'test_accuracy': min(r['test_accuracy'] for r in reports),
      'snapshots': sorted(snapshots),
    }


@dataclasses.dataclass
class Script:
  """A script of benchmarks/peers, a process a task.

  Attributes:
    file: str.
    num_ps: int.
    has_coordinator: bool, a process that alone knows of the steps; then the
      workers are servers like the ps.
    is_torch: bool.
    steps_per_call: int.
    num_workers: int.
    flags: tuple of str, of the script.
  """

  file: str
  num_ps: int = 0
  has_coordinator: bool = False
  is_torch: bool = False
  steps_per_call: int = 1
  num_workers: int = NUM_WORKERS
  flags: tuple = ()

  def run(self, work):
    python = sys.executable
    if self.is_torch:
      python = work.torch_python
      check_torch(python)
    *hosts, coordinator = pick_addresses(self.num_ps + self.num_workers + 1)
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
    (work.folder / 'counts').write_bytes(bytes(8 * self.num_workers))
    one_thread = {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    group = Group(
      [
        Process(
          f'{job}_{i}',
          [*shared, f'--job={job}', f'--task={i}'],
          is_server,
          env=one_thread,
        )
        for job, i, is_server in tasks
      ],
      work.folder,
    )
    start, _, end = group.run(work.limit_secs)
    records = [
      json.loads((work.folder / f'{job}_{i}.json').read_text())
      for job, i, is_server in tasks
      if not is_server
    ]
    firsts = [record['first_step_time'] for record in records]
    lasts = [record['marks'][-1][0] for record in records]
    snapshots = []
    for path in work.folder.glob('snapshot_*.npz'):
      with common.np.load(path) as file:
        snapshots.append((float(file['time']) - start, str(path)))
    return {
      'images_per_sec': compute_images_per_sec([r['marks'] for r in records]),
      'first_step_secs': min(firsts) - start,
      'all_step_secs': None if self.has_coordinator else max(firsts) - start,
      'gone_secs': end - max(lasts),
      'wall_secs': end - start,
      'is_killed': any(is_server for *_, is_server in tasks),
      'peak_mb': group.peak_mb,
      'cpu_secs': group.cpu_secs,
      'test_accuracy': records[0]['test_accuracy'],
      'snapshots': sorted(snapshots),
    }


def check_torch(python):
  """Raises SkippedError where `python` cannot import torch."""
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
  """Images a second of all workers, while all of them train.

  Args:
    marks: list, a worker each, of [[time, images so far], ...], ascending.

  Returns:
    float; None if there is no time that they share.
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


def with_flag(peer, flag):
  return dataclasses.replace(peer, flags=[*peer.flags, flag])


def ten_a_run(peer):
  return with_flag(peer, '--steps_per_run=10')


CEILING = Distmnist(0, [], num_launches=NUM_WORKERS, num_workers=1)
RULES = {
  'async_sgd': Distmnist(1, ['--strategy=async_sgd']),
  'sync_sgd': Distmnist(1, ['--strategy=sync_sgd'], NUM_WORKERS),
  'ring_allreduce': Distmnist(0, ['--strategy=ring_allreduce'], NUM_WORKERS),
  'downpour': Distmnist(
    1,
    ['--strategy=downpour', f'--n_fetch={PERIOD}', f'--n_push={PERIOD}'],
    PERIOD,
  ),
  'agn': Distmnist(
    1, ['--strategy=agn', f'--communication_period={PERIOD}'], PERIOD
  ),
}
PEERS = {
  'ceiling': CEILING,
  'ceiling_10': ten_a_run(CEILING),
  **RULES,
  **{f'{name}_10': ten_a_run(rule) for name, rule in RULES.items()},
  **{
    f'{name}_float16': with_flag(RULES[name], '--wire_dtype=float16')
    for name in ('async_sgd', 'sync_sgd')
  },
  'classic': Script('classic.py', num_ps=1),
  'tf2_ps': Script('tf2_ps.py', num_ps=1, has_coordinator=True),
  'tf2_ps_10': Script(
    'tf2_ps.py', num_ps=1, has_coordinator=True, steps_per_call=10
  ),
  'tf2_mirrored': Script('tf2_mirrored.py'),
  'tf2_mirrored_10': Script('tf2_mirrored.py', steps_per_call=10),
  'torch_ddp': Script('torch_ddp.py', is_torch=True),
}
TITLES = {
  'ceiling': 'two processes, no communication (distmnist)',
  'ceiling_10': 'the same, 10 steps a run',
  'async_sgd': 'distmnist async_sgd, 1 ps',
  'sync_sgd': 'distmnist sync_sgd, 1 ps',
  'ring_allreduce': 'distmnist ring_allreduce',
  'downpour': f'distmnist downpour, T={PERIOD}, 1 ps',
  'agn': f'distmnist agn, T={PERIOD}, 1 ps',
  'async_sgd_10': 'distmnist async_sgd, 10 steps a run',
  'sync_sgd_10': 'distmnist sync_sgd, 10 steps a run',
  'ring_allreduce_10': 'distmnist ring_allreduce, 10 steps a run',
  'agn_10': f'distmnist agn, T={PERIOD}, 10 steps a run',
  'downpour_10': f'distmnist downpour, T={PERIOD}, 10 steps a run',
  'async_sgd_float16': 'distmnist async_sgd, float16 on the wire',
  'sync_sgd_float16': 'distmnist sync_sgd, float16 on the wire',
  'classic': 'classic script, async, 1 ps',
  'tf2_ps': 'TF2 ParameterServerStrategy, 1 ps',
  'tf2_ps_10': 'TF2 ParameterServerStrategy, 10 steps a call',
  'tf2_mirrored': 'TF2 MultiWorkerMirroredStrategy',
  'tf2_mirrored_10': 'TF2 MultiWorkerMirroredStrategy, 10 steps a call',
  'torch_ddp': 'PyTorch DDP, gloo',
}
# No way to train one net, and so not raced to an accuracy.
CEILINGS = {'ceiling', 'ceiling_10'}


# ---- A run ----
def measure(name, work):
  """Runs a peer; returns its raw result, a dict: status, reason, measures."""
  work.folder.mkdir(parents=True)
  try:
    result = PEERS[name].run(work)
    snapshots = result.pop('snapshots')
    if work.snapshot_steps:
      result |= find_target(work, snapshots)
    return {'status': 'ok', **result}
  except SkippedError as reason:
    return {'status': 'skipped', 'reason': str(reason)}
  except PeerError as error:
    return {'status': 'failed', 'reason': str(error)}
  except Exception as error:
    # A record that is not there or has no step, say: a peer's fault as well.
    return {'status': 'failed', 'reason': f'{type(error).__name__}: {error}'}


def find_target(work, snapshots):
  """Computes when the target was reached.

  Args:
    work: Work.
    snapshots: list of (seconds since the command, path), ascending.

  Returns:
    dict: accuracies, a list of [seconds, accuracy] until the target;
    to_accuracy_secs, None if it was not reached.
  """
  target = TARGETS[work.net]
  Group(
    [
      Process(
        'accuracy',
        [
          *(sys.executable, str(FOLDER / 'accuracy.py'), work.net),
          *(str(work.data), str(target), *(path for _, path in snapshots)),
        ],
      )
    ],
    work.folder,
  ).run(work.limit_secs)
  lines = (work.folder / 'accuracy.log').read_text().splitlines()
  pairs = [
    (secs, accuracy)
    for (secs, _), accuracy in zip(snapshots, json.loads(lines[-1]))  # noqa: B905 (it ends at the target)
  ]
  reached = [secs for secs, accuracy in pairs if accuracy >= target]
  return {
    'accuracies': pairs,
    'to_accuracy_secs': reached[0] if reached else None,
  }


def prepare_data(folder):
  """Writes the unpacked images, as distmnist and as the scripts read them."""
  from distmnist import idx  # noqa: PLC0415 (not for a table alone)
  from distmnist.datasets import mnist  # noqa: PLC0415 (likewise)

  data_dir = os.environ.get('DISTMNIST_DATA_DIR') or '~/.cache/distmnist'
  files = mnist.prepare(os.path.expanduser(data_dir))
  (folder / 'mnist').mkdir()
  for name, path in files.items():
    (folder / 'mnist' / name).write_bytes(idx.read_content(path))
  for split in ('train', 'test'):
    common.write_data(folder, split, *mnist.load(str(folder), split))


def run_all(args, save):
  """Runs everything; returns the list of raw results.

  Args:
    args: Namespace of `parse_args`.
    save: callable(results), called after each run.
  """
  results, skipped = [], set()
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    data = scratch / 'data'
    data.mkdir()
    prepare_data(data)
    for net, mode, repeat, name in list_runs(args):
      if name in skipped:
        continue
      batch_size = common.NETS[net].batch_size
      steps, snapshot_steps = args.steps or STEPS[net], 0
      if mode == 'accuracy':
        epochs = args.epochs or EPOCHS[net]
        steps = round(epochs * NUM_IMAGES / batch_size / NUM_WORKERS)
        snapshot_steps = SNAPSHOT_IMAGES[net] // batch_size
      folder = scratch / 'run'
      result = measure(
        name,
        Work(
          *(net, steps, snapshot_steps, data, folder, args.torch_python),
          args.limit_secs,
        ),
      )
      if result['status'] == 'failed' and args.out:
        kept = args.out / 'failed' / f'{net}_{mode}_{name}_{repeat}'
        shutil.copytree(
          folder, kept, ignore=shutil.ignore_patterns('*.npz', 'run_?')
        )
      shutil.rmtree(folder)
      if result['status'] == 'skipped':
        skipped.add(name)
      head = {'net': net, 'mode': mode, 'repeat': repeat, 'peer': name}
      results.append({**head, **result})
      say(results[-1])
      save(results)
  return results


def list_runs(args):
  """Yields (net, mode, repeat, peer) in the order of the runs."""
  for net in args.nets:
    for repeat in range(args.repeats):
      for name in args.peers:
        yield net, 'speed', repeat, name
    for repeat in range(args.to_accuracy * args.accuracy_repeats):
      for name in args.peers:
        if name not in CEILINGS:
          yield net, 'accuracy', repeat, name


def say(result):
  """Tells on stderr how a run went."""
  head = ' '.join(str(result[k]) for k in ('net', 'mode', 'repeat', 'peer'))
  if result['status'] != 'ok':
    text = f'{result["status"]}: {result["reason"]}'
  elif result['mode'] == 'accuracy':
    text = f'{format_value(result["to_accuracy_secs"], ".1f")} s to the target'
  else:
    text = f'{format_value(result["images_per_sec"], ",.0f")} images/s'
  print(f'{head}: {text}', file=sys.stderr, flush=True)


# ---- The table ----
def compute_medians(results, net):
  """Medians of the peers of a net.

  Args:
    results: list of raw results, dicts; see `run_all`.
    net: str.

  Returns:
    dict of peer -> dict: each measure's median, None where there is none;
    over_ceiling, the median of the ratios within a repeat, to ceiling_10 for
    those with 10 steps a run; status, that of the worst run; reason; num_ok
    and num_runs, of the runs for speed.
  """
  rows = {}
  mine = [r for r in results if r['net'] == net]
  ceilings = {
    (r['peer'], r['repeat']): r['images_per_sec']
    for r in mine
    if r['peer'] in CEILINGS and r['mode'] == 'speed' and r['status'] == 'ok'
  }
  for name in dict.fromkeys(r['peer'] for r in mine):
    ceiling = 'ceiling_10' if name.endswith('_10') else 'ceiling'
    runs_of_peer = [r for r in mine if r['peer'] == name]
    speed = [r for r in runs_of_peer if r['mode'] == 'speed']
    good = [r for r in speed if r['status'] == 'ok']
    bad = [r for r in runs_of_peer if r['status'] != 'ok']
    row = {
      'status': bad[0]['status'] if bad else 'ok',
      'reason': bad[0]['reason'] if bad else '',
      'num_ok': len(good),
      'num_runs': len(speed),
      'is_killed': any(r['is_killed'] for r in good),
    }
    for key in MEASURES:
      row[key] = find_median(r.get(key) for r in good)
    row['over_ceiling'] = find_median(
      r['images_per_sec'] / ceilings[ceiling, r['repeat']]
      for r in good
      if r['images_per_sec'] and (ceiling, r['repeat']) in ceilings
    )
    raced = [
      r for r in runs_of_peer if r['mode'] == 'accuracy' and r['status'] == 'ok'
    ]
    times = [r['to_accuracy_secs'] for r in raced]
    row['to_accuracy_secs'] = find_median(times)
    row['num_missed'] = times.count(None)
    rows[name] = row
  return rows


MEASURES = (
  'images_per_sec',
  'first_step_secs',
  'all_step_secs',
  'gone_secs',
  'peak_mb',
  'cpu_secs',
  'test_accuracy',
)


def find_median(values):
  """Returns the median of what is not None; None if nothing is left."""
  known = [value for value in values if value is not None]
  return runs.median(known) if known else None


def format_value(value, spec):
  return '-' if value is None else format(value, spec)


def make_header(net):
  return [
    *('who', 'images/s', 'over the ceiling'),
    *('first step, s', 'of every worker, s', 'last step to all gone, s'),
    *(f's to {100 * TARGETS[net]:.0f} %', 'peak MB', 'CPU s', 'test accuracy'),
  ]


def make_rows(rows, net):
  """Returns the table's cells; `rows` are those of `compute_medians`."""
  table = []
  for name, row in rows.items():
    title = TITLES[name]
    if row['status'] == 'skipped':
      table.append([title, 'skipped', *['-'] * 8])
      continue
    if not row['num_ok']:
      table.append([title, 'failed', *['-'] * 8])
      continue
    if row['num_ok'] < row['num_runs']:
      title += f' ({row["num_ok"]} of {row["num_runs"]} runs)'
    gone = format_value(row['gone_secs'], '.1f')
    reached = format_value(row['to_accuracy_secs'], '.1f')
    if row['num_missed']:
      reached += f' ({row["num_missed"]} never)'
    table.append(
      [
        title,
        format_value(row['images_per_sec'], ',.0f'),
        format_value(row['over_ceiling'], '.2f'),
        format_value(row['first_step_secs'], '.1f'),
        format_value(row['all_step_secs'], '.1f'),
        gone + ', killed' * row['is_killed'],
        reached,
        format_value(row['peak_mb'], ',.0f'),
        format_value(row['cpu_secs'], ',.0f'),
        format_value(row['test_accuracy'], '.4f'),
      ]
    )
  return table


def print_tables(results):
  for net in dict.fromkeys(r['net'] for r in results):
    rows = compute_medians(results, net)
    batch_size = common.NETS[net].batch_size
    print(f'\n{net}, batch {batch_size}, {NUM_WORKERS} workers\n')
    runs.print_table(make_header(net), make_rows(rows, net))
    for name, row in rows.items():
      if row['status'] != 'ok':
        print(f'\n{TITLES[name]} {row["status"]}: {row["reason"]}')


def build_figure(results, title):
  """Returns a matplotlib Figure: bars of images/s, a panel a net."""
  from matplotlib import figure as figure_lib  # noqa: PLC0415 (extra plots)

  nets = list(dict.fromkeys(r['net'] for r in results))
  figure = figure_lib.Figure(
    figsize=(4 + 4 * len(nets), 4.2),
    dpi=110,
    facecolor='white',
    layout='constrained',
  )
  figure.suptitle(title, x=0.01, ha='left', fontsize=9)
  panels = figure.subplots(1, len(nets), squeeze=False)[0]
  for axes, net in zip(panels, nets, strict=True):
    rows = compute_medians(results, net)
    names = list(rows)[::-1]
    speeds = [rows[name]['images_per_sec'] or 0 for name in names]
    colors = []
    for name in names:
      is_ours = isinstance(PEERS[name], Distmnist) and name not in CEILINGS
      colors.append('#1f6feb' if is_ours else '#8c959f')
    bars = axes.barh(names, speeds, 0.65, color=colors)
    axes.bar_label(
      bars,
      [
        f'{speed:,.0f}' if speed else rows[name]['status']
        for name, speed in zip(names, speeds, strict=True)
      ],
      padding=3,
      fontsize=8,
    )
    axes.set_title(f'{net}: images/s', fontsize=9, loc='left')
    axes.set_xlim(0, 1.2 * max([1, *speeds]))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.xaxis.set_major_formatter('{x:,.0f}')
    axes.xaxis.set_major_locator(ticker_of(4))
  return figure


def ticker_of(num_ticks):
  from matplotlib import ticker  # noqa: PLC0415 (extra plots)

  return ticker.MaxNLocator(num_ticks)


# ---- The program ----
def parse_args(words):
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )

  def names_of(known):
    def parse(text):
      names = text.split(',')
      for name in names:
        if name not in known:
          raise argparse.ArgumentTypeError(
            f'{name!r} is none of {", ".join(known)}'
          )
      return names

    return parse

  def count(text):
    if int(text) < 1:
      raise argparse.ArgumentTypeError('expected 1 or more')
    return int(text)

  add = parser.add_argument
  add('--nets', type=names_of(STEPS), default=list(STEPS))
  add('--peers', type=names_of(PEERS), default=list(PEERS))
  add('--steps', type=count, help=f'of a worker, for speed; by default {STEPS}')
  add('--repeats', type=count, default=3)
  add('--to_accuracy', action='store_true', help='measure that as well')
  add('--accuracy_repeats', type=count, default=1)
  add('--epochs', type=float, help=f'bound of that; by default {EPOCHS}')
  add('--torch_python', default=sys.executable, help='a Python with torch')
  add('--limit_secs', type=float, default=1800, help='of one run')
  add('--out', type=pathlib.Path, help='folder: raw.json, table.md, plot.png')
  return parser.parse_args(words)


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args = parse_args(words)
  STOP.listen()
  # A peer that finds a GPU would measure something else.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  machine = f'{runs.describe_machine()}; medians of {args.repeats} runs'

  def save(results):
    if args.out:
      args.out.mkdir(parents=True, exist_ok=True)
      raw = {'machine': machine, 'results': results}
      (args.out / 'raw.json').write_text(json.dumps(raw, indent=2) + '\n')
      with (
        open(args.out / 'table.md', 'w') as file,
        contextlib.redirect_stdout(file),
      ):
        print(machine)
        print_tables(results)

  try:
    results = run_all(args, save)
  except cli.RunError as error:
    print(f'peers.py: error: {error}', file=sys.stderr)
    return 1
  print(machine)
  print_tables(results)
  if args.out:
    build_figure(results, machine).savefig(args.out / 'plot.png')
    print(f'\nall in {args.out}')
  return int(any(r['status'] == 'failed' for r in results))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
