"""A Slurm of this machine alone, made of two bash scripts: srun and scancel."""

from tests.support import programs

# Runs what it is given as so many tasks, each with a group of its own, on the
# nodes n0, n1, ...; ends with the highest of their codes. SIGTERM kills them.
_SRUN = r"""
cd {folder}
for word; do [[ $word != --ntasks=* ]] || num_tasks=${{word#*=}}; done
echo "$*" >>srun.commands
echo >groups
trap 'for pid in $(<groups); do kill -KILL -- -$pid; done 2>/dev/null' TERM
for ((i = 0; i < num_tasks; i++)); do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_STEP_ID=0 SLURMD_NODENAME=n$i \
    SLURM_STEP_NUM_TASKS=$num_tasks setsid "${{@: -2}}" &
  echo $! >>groups
done
{then}
code=0
for pid in $(<groups); do
  wait $pid; found=$?
  while kill -0 $pid 2>/dev/null; do wait $pid; found=$?; done
  ((found <= code)) || code=$found
done
exit $code
"""
_SCANCEL = r"""
cd {folder}
for pid in $(<groups); do kill -${{1#--signal=}} -- -$pid; done 2>/dev/null
"""


def make(folder, then=':'):
  """Makes the programs in `folder` (path); returns PATH with it.

  Once the tasks are started srun does `then`, as bash; a file `groups` there
  has their pids.
  """
  return programs.make(
    folder,
    srun=_SRUN.format(folder=folder, then=then),
    scancel=_SCANCEL.format(folder=folder),
  )
