"""Runs the tasks as one job of Slurm.

A script for sbatch is written into the folder of the logs, submitted, and
waited for. One srun starts all tasks; each finds its role in the variables
that the script and Slurm set. The folder of the logs and --logdir are on a
file system that the nodes share.
"""

import contextlib
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from absl import flags

from distmnist import (
  cli,
  exposure,
  files,
  processes,
  screen,
  stop_grace,
  task_logs,
)
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
# A controller that does not answer must not hold up a second signal.
CANCEL_SECS = 10.0
# From Slurm's SIGTERM to its SIGKILL where nobody has set it otherwise, and by
# how much the tasks are to be earlier.
_KILL_WAIT_SECS = 30
_KILL_MARGIN_SECS = 3
_CONFIG_SECS = 5.0
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
ports_per_job=$(((@NUM_TASKS@ + 31) / 32 * 32)) num_moves=0
choose_ports() {
  export DISTMNIST_FIRST_PORT=$((10000 +
    (SLURM_JOB_ID + num_moves * 37) % (22400 / ports_per_job) * ports_per_job))
}
choose_ports
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
  trap 'touch "$DISTMNIST_LOGS/told_to_leave"' TERM INT
  # Without the words of the shell on a program that was killed.
  { @COMMAND@ \
    >>"$log" 2>&1 </dev/null; } 2>/dev/null
  code=$?
  ((code != @NOT_SAVED@)) || touch "$DISTMNIST_LOGS/not_saved"
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
  rm -f "$failed" "$DISTMNIST_LOGS"/{not_saved,told_to_leave}
  attempt=$((restart + num_requeued + 1))
  ((attempt == 1)) || export DISTMNIST_ATTEMPT=$attempt
  srun --quiet --ntasks=@NUM_TASKS@ --distribution=block --mpi=none --wait=0 \
    --kill-on-bad-exit=1 bash -c task
  code=$?
  if ((code == 0)); then
    # The tasks may hear of it, and have left, before this shell does.
    [[ $is_cancelled || -f $DISTMNIST_LOGS/told_to_leave ]] || end 0
    is_cancelled=1
  fi
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
    # Slurm has written why before, but not where somebody used scancel.
    why=$(sed -n 's/.*\*\*\* JOB .* DUE TO \([A-Z ]*\) \*\*\*.*/\1/p' \
      "$DISTMNIST_LOGS/slurm.log" 2>/dev/null | tail -n 1)
    say "cancelled${why:+ due to ${why,,}}: the tasks were told to leave"
    # After anything else Slurm may start the job once more.
    code=143
    if [[ -f $DISTMNIST_LOGS/not_saved ]]; then
      code=@NOT_SAVED@
      say "not all is saved: see the last lines of the logs"
    fi
    [[ $why && $why != 'TIME LIMIT' ]] || end $code
    exit $code
  fi
  if ((code == 98 && num_moves < 20)); then
    ((num_moves++, restart--))
    choose_ports
    say "${who:-a task} found its port taken: from $DISTMNIST_FIRST_PORT on"
    continue
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
  if not logs_dir:
    raise cli.UsageError(
      '--launcher=slurm needs a folder for the logs that the nodes share: give'
      ' --logs_dir, or --logdir to train'
    )
  logs_dir = os.path.abspath(os.path.expanduser(logs_dir))
  kill_wait_secs = read_kill_wait()
  script = make_script(
    job,
    logs_dir,
    _PYTHON.value or sys.executable,
    _options(),
    _SETUP.value,
    kill_wait_secs,
  )
  if job.dry_run:
    print(script, end='')
    return 0
  if not shutil.which('sbatch'):
    raise cli.RunError(
      'no sbatch on this machine: start this on a login node of the cluster, or'
      ' install the Slurm client (Debian, Ubuntu: apt-get install slurm-client)'
    )
  task_logs.make_logs_dir(logs_dir, None)
  grace_secs = stop_grace.parse(job.given)
  if grace_secs >= kill_wait_secs:
    processes.say(
      f'--stop_grace_secs={grace_secs:g}, but Slurm kills {kill_wait_secs} s'
      ' after it has told the tasks (its KillWait): what takes longer to save'
      ' is lost'
    )
  path = pathlib.Path(logs_dir) / 'job.sbatch'
  with files.replacing(str(path)) as file:
    file.write(script)
  return run(job, path, logs_dir, _WAIT.value)


def read_kill_wait():
  """Returns Slurm's KillWait, seconds (int); 30, its default, if unknown."""
  try:
    done = subprocess.run(
      ['scontrol', 'show', 'config'],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=_CONFIG_SECS,
    )
  except (OSError, subprocess.TimeoutExpired):
    return _KILL_WAIT_SECS
  found = re.search(r'^KillWait\s*=\s*(\d+)', done.stdout, re.MULTILINE)
  return int(found[1]) if found else _KILL_WAIT_SECS


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


def make_script(
  job,
  logs_dir,
  python,
  options=(),
  setup=None,
  kill_wait_secs=_KILL_WAIT_SECS,
):
  """Returns the script for sbatch (str).

  Args:
    job: tasks.Job.
    logs_dir: str, an absolute path.
    python: str, the path of Python on the nodes.
    options: list of str, more options of sbatch.
    setup: str, commands of a shell that come first, or None.
    kill_wait_secs: int, from Slurm's SIGTERM to its SIGKILL.
  """
  _, chosen = stop_grace.choose(job, kill_wait_secs, _KILL_MARGIN_SECS)
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
    'NOT_SAVED': str(cli.NOT_SAVED),
    'LOGS': shlex.quote(logs_dir),
    'NUM_PS': str(job.num_ps),
    'NUM_TASKS': str(num_tasks),
    'SETUP': f'{setup}\n' if setup else '',
    # A worker that asks for several has all those of the node.
    'GPUS': _SHARE_GPUS if job.flag('num_gpus') in (None, '1') else '',
    'COMMAND': shlex.join(
      [python, '-m', job.module, *chosen, *job.train_flags]
    ),
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
    if job.num_ps + job.num_workers > 1:
      processes.say(exposure.describe(f'the tasks of job {job_id}'))
    if not is_waited_for:
      return 0
    code = submission.wait(job_id, ended, update)
  update(screen.Log.finish)
  shown.finish()
  if submission.signals:
    signum = submission.signals[0]
    name = signal.Signals(signum).name
    processes.say(f'stopped by {name}, logs in {logs_dir}')
    return code if code == cli.NOT_SAVED else 128 + signum
  if code and not any(f'job {job_id}: error: ' in line for line in said):
    ending = find_ending(job_id, code, said)
    processes.say(f'error: job {job_id} {ending}; log: {logs_dir}/slurm.log')
  return code


def find_ending(job_id, code, said):
  """Returns how a job has ended whose script names no task (str).

  Args:
    job_id: str.
    code: int, its exit code.
    said: list of str, the lines of its log.
  """
  for line in reversed(said):
    found = re.match(rf'job {job_id}: cancelled( due to [a-z ]+)?: ', line)
    if found:
      why = found[1] or ', by scancel or by Slurm'
      advice = ' (--slurm_time)' if why == ' due to time limit' else ''
      return f'was cancelled{why}{advice}, exit code {code}'
  return f'ended with exit code {code}'


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
      found = _read_end(ended, job_id)
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
  try:
    done = subprocess.run(
      ['scancel', job_id],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      start_new_session=True,
      timeout=CANCEL_SECS,
    )
  except subprocess.TimeoutExpired:
    processes.say(
      f'job {job_id}: scancel has not answered within {CANCEL_SECS:g} s: run'
      f' scancel {job_id} yourself, and see squeue'
    )
    return
  if done.returncode:
    processes.say(f'job {job_id}: {" ".join(done.stderr.split())}')
