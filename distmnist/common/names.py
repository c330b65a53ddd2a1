"""Names that several processes, or a string and a file, must agree on.

If a module is moved or renamed, its name is text here and nowhere else.
"""

import pathlib
import re
from collections.abc import Iterable

PACKAGE = 'distmnist'
PACKAGE_DIR = pathlib.Path(__file__).resolve().parents[1]

# Where the package's own names are loaded from, on demand.
CALLS = {
  'Error': 'distmnist.api.process',
  'Report': 'distmnist.api.training',
  'fit': 'distmnist.api.fit',
  'run': 'distmnist.api.training',
  'run_sweep': 'distmnist.api.sweeping',
  'run_task': 'distmnist.api.own_task',
  'start': 'distmnist.api.training',
}

# The programs, as `distmnist PROGRAM` starts them.
PROGRAMS = {
  'launch': 'runs a cluster: ps, workers and evaluators',
  'train': 'runs one task of a cluster, or trains alone',
  'sweep': 'trains with many combinations of flags, and ranks them',
  'plan': 'tells before a run what lies where, and how long it takes',
  'status': 'shows what each task of a run does',
  'logs': 'prints the log of a task',
  'stop': 'makes a run save and end',
  'report': 'draws a run on one page',
  'evaluate': 'judges checkpoints on test or validation data',
  'export': 'writes a SavedModel from a checkpoint',
  'predict': 'runs an exported model on files',
}
# As `python -m` starts them.
TRAIN = 'distmnist.train'
CHECK = 'distmnist.check_flags'
EXPORT = 'distmnist.export'
LAUNCH = 'distmnist.launch'
PREDICT = 'distmnist.predict'
METRICS_PORT = 'distmnist.watching.metrics_port'
SORTED_FLAGS = 'distmnist.api.sorted_flags'
STOP = 'distmnist.stop'
SWEEP = 'distmnist.sweep'
FORK_SERVER = 'distmnist.launching.forking.fork_server'
SPARK_AGENT = 'distmnist.spark.agent'
SPARK_MAIN = 'distmnist.training.spark_function'
AGENT = 'distmnist.launching.agent'
JOB_AGENT = 'distmnist.launching.scheduler.job_agent'
SLURM_JOB = 'distmnist.launching.slurm.run_job'
# What run_task loads once a script has defined its flags.
OWN_LOOP = 'distmnist.training.own_loop'

# The rooms: packages in which the name of a file is the value of a flag.
DATASETS = 'distmnist.datasets'
LAUNCHERS = 'distmnist.launchers'
MODELS = 'distmnist.models'
PROBLEMS = 'distmnist.problems'
RANKERS = 'distmnist.rankers'
STRATEGIES = 'distmnist.strategies'
# The rooms that other packages may add to, by their flags of train.
ROOMS_OF_FLAGS = {
  'dataset': DATASETS,
  'model': MODELS,
  'problem': PROBLEMS,
  'strategy': STRATEGIES,
}

# What a step with sparse tables counts, and a report sums up: the ids that were
# looked up, the distinct ones, whose rows move, those of each ps, and the bytes
# of each table.
ROWS = 'rows/'
ROW_IDS = 'rows/ids'
ROWS_DIFFERENT = 'rows/different'
ROWS_OF_PS = 'rows/of_ps_'
ROW_BYTES_OF = 'rows/bytes_of_'

# What metrics are of: the parts of a problem's examples.
SPLITS = 'train', 'validation', 'test'
# The worker that saves, evaluates and reports.
CHIEF = 'worker 0'
# Tells a restarted task which attempt it is: 2, 3, ... Not set at the first
# attempt.
ATTEMPT = 'DISTMNIST_ATTEMPT'
# Names a launch: the same for all attempts at its tasks, and for no other.
LAUNCH_ID = 'DISTMNIST_LAUNCH_ID'
# Set where the user types `distmnist launch`, and no python -m.
BY_COMMAND = 'DISTMNIST_BY_COMMAND'
# How many workers are enough to go on, if fewer than all are.
MIN_WORKERS = 'DISTMNIST_MIN_WORKERS'
# The file of --problem, if a launcher has sent it along.
SENT_FILE = 'DISTMNIST_SENT_FILE'
# The first port of the tasks of a host, unless told otherwise: below the ports
# that the kernel gives to outgoing connections.
FIRST_PORT = 2222
# The most tasks of a job: more than anybody has, fewer than would fill the
# memory.
MAX_TASKS = 10_000
# A file for each GPU of this machine, as a glob pattern.
GPU_FILES = '/dev/nvidia[0-9]*'


def of_weights(paths: Iterable[str]) -> list[str]:
  """Returns what the weights of a Keras model are called in a graph.

  Args:
    paths: of all its weights, in order; some may be equal, as names are not.
  """
  found: list[str] = []
  for number, path in enumerate(paths):
    name = re.sub(r'[^\w./-]', '_', path).lstrip('_/-')
    found.append(f'{name}_{number}' if name in found else name)
  return found
