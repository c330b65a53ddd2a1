#!/usr/bin/env bash
#SBATCH --job-name=distmnist
#SBATCH --time=60
#SBATCH --cpus-per-task=1
# A cluster in a job of Slurm, by plain commands: read it, copy it, change it.
#
#   sbatch --ntasks=4 scripts/run_slurm.sh NUM_PS -- <flags of train>
#
# The first NUM_PS tasks are ps, the others workers. Submit it in the folder of
# distmnist, with its .venv, on a file system that all nodes share. Ports are
# counted from $PORT (2222) on each node. `scancel --batch --signal=TERM JOB`
# ends it, and the chief saves. `python -m distmnist.launch --launcher=slurm`
# does more: it restarts tasks, too.
set -euo pipefail

if [[ $# -lt 2 || $1 != [0-9]* || $2 != -- || -z ${SLURM_NTASKS:-} ]]; then
  echo "usage: sbatch --ntasks=N $0 NUM_PS -- <flags of train>" >&2
  exit 2
fi
num_ps=$1
shift 2
port=${PORT:-2222}

# Where the task with each number runs, in their order.
# shellcheck disable=SC2016
mapfile -t nodes < <(srun bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME' |
  sort -n | cut -d' ' -f2)
addresses=()
for i in "${!nodes[@]}"; do addresses+=("${nodes[i]}:$((port + i))"); done
join() { (IFS=, && echo "$*"); }
PS_HOSTS=$(join "${addresses[@]:0:num_ps}")
WORKER_HOSTS=$(join "${addresses[@]:num_ps}")
export NUM_PS=$num_ps PS_HOSTS WORKER_HOSTS
export PYTHON=${PYTHON:-.venv/bin/python}

# The first that fails ends the others. A signal is for all tasks.
# shellcheck disable=SC2016
srun --label --kill-on-bad-exit=1 bash -c '
  job=ps index=$SLURM_PROCID
  if ((index >= NUM_PS)); then job=worker index=$((index - NUM_PS)); fi
  exec "$PYTHON" -m distmnist.train --job_name=$job \
    --task_index=$index --ps_hosts="$PS_HOSTS" \
    --worker_hosts="$WORKER_HOSTS" "$@"' task "$@" &
srun=$!
trap 'kill -TERM $srun' TERM INT
until wait $srun; do
  code=$?
  kill -0 $srun 2>/dev/null || exit $code
done
