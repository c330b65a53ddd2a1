"""The script of a Slurm job: the options of sbatch, and what runs the tasks.

It runs all tasks in one step, and restarts them.
distmnist.launching.slurm.sbatch and the launcher read what it prints and
writes.
"""

import re
import shlex
import signal

from distmnist.common import cli, signals, stop_grace
from distmnist.launching import jobs, problem_file

# The time from Slurm's SIGTERM to its SIGKILL unless it is configured, and how
# long before the SIGKILL the tasks must have left.
KILL_WAIT_SECS = 30
_KILL_MARGIN_SECS = 3

# @WORDS@ are filled in. Each task writes its own log, as Slurm knows no names
# such as worker_0; and the first that fails says so in a file, as srun's exit
# code is the highest of all.
_SCRIPT = r"""#!/bin/bash
# Written by distmnist.launch: @SHAPE@.
@OPTIONS@
max_restarts=@MAX_RESTARTS@
export DISTMNIST_LOGS=@LOGS@ DISTMNIST_LAUNCH_ID=$SLURM_JOB_ID
# Several jobs may share the folder: each has files of its own for its state.
export DISTMNIST_JOB=$DISTMNIST_LOGS/job_$SLURM_JOB_ID
say() { echo "job $SLURM_JOB_ID: $*"; }
# Earlier jobs, and this one before it was requeued, have written there too.
log_start=$(wc -c 2>/dev/null <"$DISTMNIST_LOGS/slurm.log" || echo 0)

# ---- The tasks: the first are ps, the others workers ----
export DISTMNIST_NUM_PS=@NUM_PS@ DISTMNIST_NUM_EVALUATORS=@NUM_EVALUATORS@
# Jobs that share a node serve on ports of their own, below those that the
# kernel gives to outgoing connections.
ports_per_job=$(((@NUM_TASKS@ + 31) / 32 * 32)) num_moves=0
choose_ports() {
  export DISTMNIST_FIRST_PORT=$((10000 +
    (SLURM_JOB_ID + num_moves * 37) % (22400 / ports_per_job) * ports_per_job))
}
choose_ports
export PYTHONUNBUFFERED=1@SENT@
@SETUP@
task() {
  local name=ps index=$SLURM_PROCID code
  if ((index >= DISTMNIST_NUM_PS)); then
    name=worker index=$((index - DISTMNIST_NUM_PS))
  fi
  if ((SLURM_PROCID >= @NUM_TASKS@ - DISTMNIST_NUM_EVALUATORS)); then
    name=evaluator index=0
  fi
  local log=$DISTMNIST_LOGS/${name}_$index.log
  # Another attempt or job may have written there, and no whole line at last.
  local note=$DISTMNIST_NOTE
  [[ $note || ! -s $log ]] || note="job ${DISTMNIST_JOB##*_}"
  [[ -z $(tail -c 1 "$log" 2>/dev/null) ]] || echo >>"$log"
  [[ -z $note ]] || echo "--- $note ---" >>"$log"@GPUS@
  # A signal is the program's; we say how it ends.
  trap 'touch "$DISTMNIST_JOB.told_to_leave"' TERM INT
  trap 'touch "$DISTMNIST_JOB".{told_to_leave,noticed}' USR1 USR2 XCPU
  # Without the words of the shell on a program that was killed.
  { @COMMAND@ \
    >>"$log" 2>&1 </dev/null; } 2>/dev/null
  code=$?
  if [[ $name == evaluator ]]; then
    ((code == 0)) || [[ -f $DISTMNIST_JOB.told_to_leave ]] ||
      echo "evaluator 0 failed: exit code $code: the run goes on without it"
    return 0
  fi
  ((code != @NOT_SAVED@)) || touch "$DISTMNIST_JOB.not_saved"
  if ((code)); then
    # Made by the first alone.
    (set -C; echo "$code $SLURMD_NODENAME $name $index" \
      >"$DISTMNIST_JOB.failed") 2>/dev/null
  fi
  return $code
}
export -f task

# ---- The job: all tasks at once, and again if that may go well ----
# All of this shell goes to the tasks, whatever sbatch was told (its --export).
how=(--quiet --distribution=block --mpi=none --wait=0 --kill-on-bad-exit=1
  --export=ALL)
is_cancelled=
trap 'is_cancelled=1' TERM
# Tells the launcher, which hears of it from Slurm some seconds later.
end() { forget; echo "$SLURM_JOB_ID $1" >"$DISTMNIST_JOB.ended"; exit "$1"; }
forget() { rm -f "$DISTMNIST_JOB".{failed,not_saved,told_to_leave,noticed}; }
more=${SLURM_JOB_NODELIST_HET_GROUP_1-}
say "runs on $SLURM_JOB_NODELIST${more:+ and $more}"
# Slurm starts a job again whose node has failed, or was needed by others.
num_requeued=${SLURM_RESTART_COUNT-0}
export DISTMNIST_NOTE=
((num_requeued == 0)) || DISTMNIST_NOTE="requeued by Slurm"
for ((restart = 0; ; restart++)); do
  forget
  attempt=$((restart + num_requeued + 1))
  ((attempt == 1)) || export DISTMNIST_ATTEMPT=$attempt
  @STEP@
  code=$?
  if ((code == 0)); then
    # The tasks may hear of it, and have left, before this shell does.
    [[ $is_cancelled || -f $DISTMNIST_JOB.told_to_leave ]] || end 0
    is_cancelled=1
  fi
  cause="srun ended with exit code $code" who='' host=''
  if [[ -f $DISTMNIST_JOB.failed ]]; then
    read -r code host job index <"$DISTMNIST_JOB.failed"
    who="$job $index" cause="exit code $code"
    # A task that is told to leave gives these codes itself.
    if ((code > 128 && code != 130 && code != 143)); then
      cause="killed by SIG$(kill -l $((code - 128)))"
    fi
  fi
  # Slurm gives notice of a limit (--signal=USR1@60) to the step alone.
  [[ ! -f $DISTMNIST_JOB.noticed ]] || is_cancelled=1
  if [[ $is_cancelled ]]; then
    # Slurm has written why before, but not where somebody used scancel.
    why=$(tail -c +$((log_start + 1)) "$DISTMNIST_LOGS/slurm.log" 2>/dev/null |
      sed -n 's/.*\*\*\* JOB .* DUE TO \([A-Z ]*\) \*\*\*.*/\1/p' | tail -n 1)
    say "cancelled${why:+ due to ${why,,}}: the tasks were told to leave"
    # After anything else Slurm may start the job once more.
    code=143
    if [[ -f $DISTMNIST_JOB.not_saved ]]; then
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
  lines=$(tail -n 10 "$log" | tac | sed '/^--- .* ---$/Q' | tac)
  sed 's/^/  | /' <<<"${lines:-(it has written nothing)}"
  when=first
  if ((restart)); then
    when="after $restart restart$( ((restart == 1)) || echo s)"
  fi
  say "error: $who ($host) failed $when: $cause; log: $log"
fi
end $code
"""

# srun does not inherit the CPUs per task from sbatch.
_STEP = r"""srun "${how[@]}" --ntasks=@NUM_TASKS@ \
    ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} \
    bash -c task"""
# One step on two allocations; its tasks are numbered consecutively.
_HET_STEP = r"""ps_cpus=${SLURM_CPUS_PER_TASK_HET_GROUP_0-}
  worker_cpus=${SLURM_CPUS_PER_TASK_HET_GROUP_1-}
  srun "${how[@]}" --het-group=0 ${ps_cpus:+--cpus-per-task=$ps_cpus} \
    bash -c task : \
    "${how[@]}" --het-group=1 ${worker_cpus:+--cpus-per-task=$worker_cpus} \
    bash -c task"""

# A strict mode is for the user's own commands: with `set -e` the script would
# end with the first attempt, and never say why.
_AFTER_SETUP = r"""set +e +u +o pipefail
IFS=$' \t\n'
"""

_SHARE_GPUS = r"""
  # The GPUs of a node go to its workers in turn.
  if [[ $name != worker ]]; then
    export CUDA_VISIBLE_DEVICES=
  elif [[ ${CUDA_VISIBLE_DEVICES-} == *,* ]]; then
    local gpus
    IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
    export CUDA_VISIBLE_DEVICES=${gpus[SLURM_LOCALID % ${#gpus[@]}]}
  fi"""
_STOPS = [signal.Signals(n).name.removeprefix('SIG') for n in signals.STOPS]


def make(
  job,
  logs_dir,
  python,
  components=((),),
  setup=None,
  kill_wait_secs=KILL_WAIT_SECS,
  may_requeue=False,
):
  """Returns the script for sbatch (str).

  Args:
    job: jobs.Job.
    logs_dir: str, an absolute path.
    python: str, the path of Python on the nodes.
    components: list of lists of str, more options of sbatch: one list for all
      tasks, or one for the ps and one for the workers of a heterogeneous job.
    setup: str, shell commands that run first, or None.
    kill_wait_secs: int, from Slurm's SIGTERM to its SIGKILL.
    may_requeue: bool, whether Slurm may start the job again after a node has
      failed or was needed by a job of higher priority.

  Raises:
    cli.UsageError: an option of sbatch, or `logs_dir`, has a line break.
  """
  _, chosen = stop_grace.choose(job, kill_wait_secs, _KILL_MARGIN_SECS)
  counts = [job.num_ps, job.num_workers + job.evaluator]
  words = {
    'SHAPE': jobs.describe_size(job.num_ps, job.num_workers, job.evaluator),
    'OPTIONS': make_options(logs_dir, counts, components, may_requeue),
    'STEP': _HET_STEP if len(components) > 1 else _STEP,
    'MAX_RESTARTS': str(job.max_restarts),
    'NOT_SAVED': str(cli.NOT_SAVED),
    'LOGS': shlex.quote(logs_dir),
    'NUM_PS': str(job.num_ps),
    'NUM_EVALUATORS': str(int(job.evaluator)),
    'NUM_TASKS': str(sum(counts)),
    'SENT': ''.join(
      f'\nexport {name}={shlex.quote(value)}'
      for name, value in problem_file.make_env(job.flag('problem'))
    ),
    'SETUP': f'{setup}\n{_AFTER_SETUP}' if setup else '',
    # A worker that asks for several gets all GPUs of its node.
    'GPUS': _SHARE_GPUS if job.flag('num_gpus') in (None, '1') else '',
    'COMMAND': shlex.join(
      [python, '-m', job.module, *chosen, *job.train_flags]
    ),
  }
  script = _SCRIPT
  # The user's words last, as they may look like ours.
  for name, text in words.items():
    script = script.replace(f'@{name}@', text)
  return script


def make_options(logs_dir, counts, components, may_requeue):
  """Returns the lines (str) for the parts of a job.

  Args:
    logs_dir: str, an absolute path; slurm.log there is the job's own log.
    counts: list of int, the ps and all other tasks.
    components: list of lists of str, more options: one list for all tasks, or
      one for the ps and one for the others of a heterogeneous job.
    may_requeue: bool, whether Slurm may start the job again.

  Raises:
    cli.UsageError: an option would take more than one line, or has Slurm send
      a signal that ends the tasks unsaved.
  """
  for option in {option for options in components for option in options}:
    _check_signal(option)
  common = [
    '--job-name=distmnist',
    f'--output={_as_pattern(logs_dir)}/slurm.log',
    '--open-mode=append',
    '--requeue' if may_requeue else '--no-requeue',
  ]
  if len(components) == 1:
    counts = [sum(counts)]
  parts = [
    [*common, f'--ntasks={count}', *options]
    for count, options in zip(counts, components, strict=True)
  ]
  return '\n#SBATCH hetjob\n'.join(
    '\n'.join(f'#SBATCH {_quote(option)}' for option in part) for part in parts
  )


def _check_signal(option):
  """Checks an option of the kind --signal=[{R|B}:]NAME_OR_NUMBER[@SECS]."""
  match = re.fullmatch(r'--signal=(?:([RB]+):)?(\w+)(?:@\d+)?', option)
  if not match:
    return
  to_whom, signum = match[1] or '', match[2].upper().removeprefix('SIG')
  numbers = {str(int(n)) for n in signals.STOPS}
  if 'B' in to_whom or signum not in {*_STOPS, *numbers}:
    raise cli.UsageError(
      f'--slurm_options={option}: the tasks save when they themselves get one '
      f'of {", ".join(_STOPS)}: expected such as --signal=TERM@60, without B:, '
      'which signals the script of the job alone'
    )


def _as_pattern(path):
  """Returns Slurm's pattern of a file name for exactly this path."""
  # A backslash anywhere turns the meaning of % off.
  if '\\' in path:
    return path.replace('\\', '\\\\')
  return path.replace('%', '%%')


def _quote(option):
  if '\n' in option:
    raise cli.UsageError(
      f'{option!r} cannot be given to sbatch, which reads one option a line:'
      ' leave the line break out'
    )
  # Unlike a shell, sbatch takes a backslash for an escape within '' too.
  return shlex.quote(option).replace('\\', '\\\\')
