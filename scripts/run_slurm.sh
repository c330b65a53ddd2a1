#!/usr/bin/env bash
#SBATCH --job-name=distmnist
# A cluster in a job of Slurm, by plain commands: read it, copy it, change it.
#
#   sbatch --ntasks=4 --time=60 scripts/run_slurm.sh NUM_PS -- <flags of train>
#
# The first NUM_PS tasks are ps, the others workers. Submit it in the folder of
# distmnist, with its .venv, on a file system that all nodes share. Ports are
# counted from $PORT (2222) on each node. `scancel JOB` ends it, and the chief
# saves. `python -m distmnist.launch --launcher=slurm` does more: it restarts
# tasks, too.
set -euo pipefail

if [[ $# -lt 2 || $1 != [0-9]* || $2 != -- || -z ${SLURM_NTASKS:-} ]]; then
  echo "usage: sbatch --ntasks=N $0 NUM_PS -- <flags of train>" >&2
  exit 2
fi
num_ps=$1
shift 2
port=${PORT:-2222}
if ((num_ps >= SLURM_NTASKS)); then
  echo "$0: expected --ntasks above NUM_PS=$num_ps, not $SLURM_NTASKS" >&2
  exit 2
fi
srun=(srun --export=ALL ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"})

# Where the task with each number runs, in their order.
# shellcheck disable=SC2016
nodes=$("${srun[@]}" bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME' | sort -n)
addresses=()
while read -r number node; do
  addresses+=("$node:$((port + number))")
done <<<"$nodes"
join() { (IFS=, && echo "$*"); }
PS_HOSTS=$(join "${addresses[@]:0:num_ps}")
WORKER_HOSTS=$(join "${addresses[@]:num_ps}")
export NUM_PS=$num_ps PS_HOSTS WORKER_HOSTS
export PYTHON=${PYTHON:-.venv/bin/python}

# The first that fails ends the others. Who was told to end (143) has not
# failed, or Slurm would kill a chief that still saves.
trap : TERM
# shellcheck disable=SC2016
"${srun[@]}" --label --wait=0 --kill-on-bad-exit=1 bash -c '
  job=ps index=$SLURM_PROCID
  if ((index >= NUM_PS)); then job=worker index=$((index - NUM_PS)); fi
  trap : TERM
  "$PYTHON" -m distmnist.train --job_name=$job --task_index=$index \
    --ps_hosts="$PS_HOSTS" --worker_hosts="$WORKER_HOSTS" "$@"
  code=$?
  exit $((code == 143 ? 0 : code))' task "$@"
