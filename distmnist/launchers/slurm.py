"""Runs the tasks as one job of Slurm.

A script for sbatch is written into the folder of the logs, submitted, and
waited for. One srun starts all tasks; each finds its role in the variables
that the script and Slurm set. The folder of the logs and --logdir are on a
file system that the nodes share.
"""

import contextlib
import os
import pathlib
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from absl import flags

from distmnist import cli, processes, screen
from distmnist import tasks as tasks_lib

_PARTITION = flags.DEFINE_string(
  'slurm_partition', None, 'Partition (queue) to submit to.'
)
_TIME = flags.DEFINE_string(
  'slurm_time', None, 'Limit of the job, as Slurm writes it: 30, 2:00:00, 1-0.'
)
_NODES = flags.DEFINE_integer(
  'slurm_nodes', None, 'Nodes to spread the tasks over.', lower_bound=1
)
_OPTIONS = flags.DEFINE_string(
  'slurm_options',
  '',
  'More options of sbatch, as in a shell: "--cpus-per-task=4 --gres=gpu:2".',
)
_SETUP = flags.DEFINE_string(
  'slurm_setup',
  None,
  'What the job runs in a shell before all else: "module load cuda".',
)
_PYTHON = flags.DEFINE_string(
  'slurm_python',
  None,
  'Python on the nodes. Default: the path of the one here.',
)
_WAIT = flags.DEFINE_bool(
  'slurm_wait',
  True,
  'Show the job and wait for its end; a signal cancels it. Else it is submitted'
  ' and left to Slurm.',
)

TICK_SECS = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# @WORDS@ are put in. A task writes its log by itself, as Slurm knows no names
# such as worker_0; and who fails first says so in a file, as srun's exit code
# is the highest of all.
_SCRIPT = r"""#!/bin/bash
# Written by distmnist.launch: @SHAPE@.
@OPTIONS@
max_restarts=@MAX_RESTARTS@
export DISTMNIST_LOGS=@LOGS@
export failed=$DISTMNIST_LOGS/failed
say() { echo "job $SLURM_JOB_ID: $*"; }

# ---- The tasks: the first are ps, the others workers ----
export DISTMNIST_NUM_PS=@NUM_PS@
# Jobs that share a node serve on ports of their own, below those that the
# kernel gives to outgoing connections.
export DISTMNIST_FIRST_PORT=$((10000 + SLURM_JOB_ID % 700 * 32))
export PYTHONUNBUFFERED=1
# srun does not take it over from sbatch.
[[ -z ${SLURM_CPUS_PER_TASK-} ]] ||
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
@SETUP@
task() {
  local name=ps index=$SLURM_PROCID code
  if ((index >= DISTMNIST_NUM_PS)); then
    name=worker index=$((index - DISTMNIST_NUM_PS))
  fi
  local log=$DISTMNIST_LOGS/${name}_$index.log
  [[ -z $DISTMNIST_NOTE ]] || echo "--- $DISTMNIST_NOTE ---" >>"$log"@GPUS@
  # A signal is the program's; we say how it ends.
  trap : TERM INT
  # Without the words of the shell on a program that was killed.
  { @COMMAND@ \
    >>"$log" 2>&1 </dev/null; } 2>/dev/null
  code=$?
  if ((code)); then
    # Made by the first alone.
    (set -C; echo "$code $SLURMD_NODENAME $name $index" >"$failed") 2>/dev/null
  fi
  return $code
}
export -f task

# ---- The job: all tasks at once, and again if that may go well ----
is_cancelled=
trap 'is_cancelled=1' TERM
# Tells the launcher, who hears of it from Slurm some seconds later.
end() { echo "$SLURM_JOB_ID $1" >"$DISTMNIST_LOGS/ended"; exit "$1"; }
say "runs on $SLURM_JOB_NODELIST"
# Slurm starts a job again whose node has failed, or was needed by others.
num_requeued=${SLURM_RESTART_COUNT-0}
export DISTMNIST_NOTE=
((num_requeued == 0)) || DISTMNIST_NOTE="requeued by Slurm"
for ((restart = 0; ; restart++)); do
  rm -f "$failed"
  attempt=$((restart + num_requeued + 1))
  ((attempt == 1)) || export DISTMNIST_ATTEMPT=$attempt
  srun --quiet --ntasks=@NUM_TASKS@ --distribution=block --mpi=none --wait=0 \
    --kill-on-bad-exit=1 bash -c task
  code=$?
  ((code)) || end 0
  cause="srun ended with exit code $code" who='' host=''
  if [[ -f $failed ]]; then
    read -r code host job index <"$failed"
    who="$job $index" cause="exit code $code"
    # A task that is told to leave gives these codes itself.
    if ((code > 128 && code != 130 && code != 143)); then
      cause="killed by SIG$(kill -l $((code - 128)))"
    fi
  fi
  if [[ $is_cancelled ]]; then
    say 'cancelled: the tasks were told to leave'
    exit 143
  fi
  # 1 and 2 would come again, and the task has said what to do.
  if ((restart >= max_restarts || code == 1 || code == 2)); then
    break
  fi
  DISTMNIST_NOTE="restart $((restart + 1)) of $max_restarts"
  say "${who:-the step} failed: $cause: $DISTMNIST_NOTE, of all tasks"
done

# ---- The root cause last ----
if [[ -z $who ]]; then
  say "error: $cause; log: $DISTMNIST_LOGS/slurm.log"
else
  log=$DISTMNIST_LOGS/${who/ /_}.log
  say "the last lines of $who:"
  tail -n 10 "$log" | sed 's/^/  | /'
  when=first
  if ((restart)); then
    when="after $restart restart$( ((restart == 1)) || echo s)"
  fi
  say "error: $who ($host) failed $when: $cause; log: $log"
fi
end $code
"""

_SHARE_GPUS = r"""
  # The GPUs of a node go to its workers in turn, none to a ps.
  if [[ $name == ps ]]; then
    export CUDA_VISIBLE_DEVICES=
  elif [[ ${CUDA_VISIBLE_DEVICES-} == *,* ]]; then
    local gpus
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
    export CUDA_VISIBLE_DEVICES=${gpus[SLURM_LOCALID % ${#gpus[@]}]}
  fi"""


def launch(job):
  """Runs the tasks.Job; returns its exit code (int)."""
  logdir = job.flag('logdir')
  logs_dir = job.logs_dir or (logdir and os.path.join(logdir, 'logs'))
  if not logs_dir or '://' in logs_dir:
    raise cli.UsageError(
      '--launcher=slurm needs a folder for the logs that the nodes share: give'
      ' --logs_dir, or --logdir to train'
    )
  logs_dir = os.path.abspath(logs_dir)
  script = make_script(
    job, logs_dir, _PYTHON.value or sys.executable, _options(), _SETUP.value
  )
  if job.dry_run:
    print(script, end='')
    return 0
  if not shutil.which('sbatch'):
    raise cli.RunError(
      'no sbatch on this machine: start this on a login node of the cluster, or'
      ' install the Slurm client (Debian, Ubuntu: apt-get install slurm-client)'
    )
  processes.make_logs_dir(logs_dir, None)
  path = pathlib.Path(logs_dir) / 'job.sbatch'
  path.write_text(script)
  return run(job, path, logs_dir, _WAIT.value)


def _options():
  """Returns the options of sbatch that the flags ask for, a list of str."""
  try:
    more = shlex.split(_OPTIONS.value)
  except ValueError as error:
    raise cli.UsageError(
      f'--slurm_options={_OPTIONS.value}: {error}'
    ) from error
  named = {
    'partition': _PARTITION.value,
    'time': _TIME.value,
    'nodes': _NODES.value,
  }
  return [f'--{n}={v}' for n, v in named.items() if v is not None] + more


def make_script(job, logs_dir, python, options=(), setup=None):
  """Returns the script for sbatch (str).

  Args:
    job: tasks.Job.
    logs_dir: str, an absolute path.
    python: str, the path of Python on the nodes.
    options: list of str, more options of sbatch.
    setup: str, commands of a shell that come first, or None.
  """
  num_tasks = job.num_ps + job.num_workers
  ours = [
    '--job-name=distmnist',
    f'--ntasks={num_tasks}',
    f'--output={logs_dir.replace("%", "%%")}/slurm.log',
    '--open-mode=append',
    # Whether it comes again after a node has failed.
    '--requeue' if job.max_restarts else '--no-requeue',
  ]
  words = {
    'SHAPE': _shape(job),
    'OPTIONS': '\n'.join(
      f'#SBATCH {shlex.quote(option)}' for option in (*ours, *options)
    ),
    'MAX_RESTARTS': str(job.max_restarts),
    'LOGS': shlex.quote(logs_dir),
    'NUM_PS': str(job.num_ps),
    'NUM_TASKS': str(num_tasks),
    'SETUP': f'{setup}\n' if setup else '',
    # A worker that asks for several has all those of the node.
    'GPUS': _SHARE_GPUS if job.flag('num_gpus') in (None, '1') else '',
    'COMMAND': shlex.join([python, '-m', job.module, *job.train_flags]),
  }
  script = _SCRIPT
  # The words of the user last: they may look like ours.
  for name, text in words.items():
    script = script.replace(f'@{name}@', text)
  return script


def run(job, script, logs_dir, is_waited_for=True):
  """Submits a script and shows the job until it ends; returns its exit code.

  Args:
    job: tasks.Job.
    script: path.
    logs_dir: str, where the job writes its logs.
    is_waited_for: bool, else 0 is returned once it is submitted.

  Raises:
    cli.RunError: sbatch does not take it.
  """
  names = ['ps:1'] * job.num_ps, ['worker:1'] * job.num_workers
  shown = screen.make_screen(
    logs_dir, tasks_lib.make_tasks(*names, []), job.show_logs
  )
  log = screen.Log(os.path.join(logs_dir, 'slurm.log'))
  said = []

  def update(read=screen.Log.read_lines):
    shown.update()
    for line in read(log):
      # What Slurm tells of a step is told better by the script.
      if line.startswith('srun: ') or ' *** STEP ' in line:
        continue
      shown.close_line()
      print(f'[slurm] {line}', file=sys.stderr, flush=True)
      said.append(line)

  ended = pathlib.Path(logs_dir) / 'ended'
  ended.unlink(missing_ok=True)
  with _Submission(script, is_waited_for) as submission:
    job_id = submission.read_job_id()
    processes.say(f'{_shape(job)} as job {job_id} of Slurm, logs in {logs_dir}')
    if not is_waited_for:
      return 0
    code = submission.wait(job_id, ended, update)
  update(screen.Log.finish)
  shown.finish()
  if submission.signals:
    signum = submission.signals[0]
    name = signal.Signals(signum).name
    processes.say(f'stopped by {name}, logs in {logs_dir}')
    return 128 + signum
  if code and not any(f'job {job_id}: error: ' in line for line in said):
    processes.say(
      f'error: job {job_id} ended with exit code {code}; log:'
      f' {logs_dir}/slurm.log'
    )
  return code


def _shape(job):
  plural = 's' if job.num_workers > 1 else ''
  return f'{job.num_ps} ps and {job.num_workers} worker{plural}'


class _Submission:
  """sbatch, from the submission to the end of the job. A context.

  While it is open SIGINT, SIGTERM and SIGHUP do not end this process: they
  cancel the job.

  Attributes:
    signals: list of int, what this process received.
  """

  def __init__(self, script, is_waited_for):
    wait = ['--wait'] if is_waited_for else []
    self._command = ['sbatch', '--parsable', *wait, str(script)]
    self.signals = []

  def __enter__(self):
    self._old_handlers = {
      signum: signal.signal(signum, lambda n, _: self.signals.append(n))
      for signum in _SIGNALS
      if (signum, signal.getsignal(signum)) != (signal.SIGHUP, signal.SIG_IGN)
    }
    self._words = tempfile.TemporaryFile()
    self._sbatch = subprocess.Popen(
      self._command,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=self._words,
      start_new_session=True,  # A Ctrl-C is ours to pass on.
    )
    return self

  def __exit__(self, *_):
    # It only waits: the job is Slurm's.
    self._sbatch.kill()
    self._sbatch.wait()
    self._sbatch.stdout.close()
    self._words.close()
    for signum, handler in self._old_handlers.items():
      signal.signal(signum, handler)

  def read_job_id(self):
    """Returns the number (str) of the job.

    Raises:
      cli.RunError: it is refused, or a second signal comes before the answer.
    """
    line = b''
    while not line.endswith(b'\n'):
      if len(self.signals) > 1:
        raise cli.RunError(
          'stopped while sbatch submits the job: see squeue whether it is there'
        )
      if select.select([self._sbatch.stdout], [], [], TICK_SECS)[0]:
        data = os.read(self._sbatch.stdout.fileno(), 1 << 12)
        if not data:
          self._sbatch.wait()
          raise cli.RunError(f'no job: {self._last_words()}')
        line += data
    # With a federation of clusters: number;name.
    return line.decode().strip().partition(';')[0]

  def wait(self, job_id, ended, on_tick):
    """Waits for the end of the job; returns its exit code.

    The first signal cancels it: Slurm tells the tasks by SIGTERM, and kills
    who still runs after its KillWait. The second leaves it at that.

    Args:
      job_id: str.
      ended: path, the file into which the script writes its number and exit
        code at the end: it comes earlier than the answer of sbatch.
      on_tick: callable, called every TICK_SECS.
    """
    is_cancelled = False
    while True:
      if self.signals and not is_cancelled:
        is_cancelled = True
        _cancel(job_id)
      if len(self.signals) > 1:
        processes.say(f'job {job_id} is left to Slurm, which kills it')
        return 128 + self.signals[0]
      is_over = self._sbatch.poll() is not None
      found = None if self.signals else _read_end(ended, job_id)
      on_tick()
      if found is not None:
        return found
      if is_over:
        code = self._sbatch.returncode
        return 128 - code if code < 0 else code
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._sbatch.wait(TICK_SECS)

  def _last_words(self):
    self._words.seek(0)
    lines = self._words.read().decode(errors='replace').split('\n')
    said = [line.strip() for line in lines if line.strip()]
    return '; '.join(said[-2:]) or (
      f'sbatch ended with exit code {self._sbatch.returncode}'
    )


def _read_end(path, job_id):
  """Returns the exit code that the script has left, None before that."""
  try:
    words = path.read_text()
  except OSError:
    return None
  if not words.endswith('\n') or words.split()[0] != job_id:
    return None
  return int(words.split()[1])


def _cancel(job_id):
  done = subprocess.run(
    ['scancel', job_id],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    start_new_session=True,
  )
  if done.returncode:
    processes.say(f'job {job_id}: {" ".join(done.stderr.split())}')
