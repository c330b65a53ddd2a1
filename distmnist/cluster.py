"""Who is who, and who am I: hosts, server, device setter, session config.

Every task is started with the same two lists of hosts and with its own
--job_name and --task_index, or finds both in its environment variables
(task_environment.py). No hosts at all is the same program on one machine: a
worker 0 that is its own chief and keeps the variables itself.
"""

import contextlib
import dataclasses
import os
import re

import tensorflow.compat.v1 as tf
from absl import flags
from tensorflow.core.protobuf import rewriter_config_pb2

from distmnist import cli, ports, task_environment, tasks

_JOB_NAME = flags.DEFINE_enum(
  'job_name', None, ['ps', 'worker'], 'What this task is in the cluster.'
)
_TASK_INDEX = flags.DEFINE_integer(
  'task_index',
  None,
  'Index of this task within its job. Worker 0 is the chief: it initialises '
  'the variables, writes the checkpoints and evaluates.',
  lower_bound=0,
)
_PS_HOSTS = flags.DEFINE_string(
  'ps_hosts', None, 'host:port of each ps, in order, separated by commas.'
)
_WORKER_HOSTS = flags.DEFINE_string(
  'worker_hosts',
  None,
  'host:port of each worker, in order, separated by commas.',
)
_START_TIMEOUT_SECS = flags.DEFINE_float(
  'start_timeout_secs',
  60,
  'How long to wait for the other tasks before giving up, in seconds.',
  lower_bound=0,
)
_NUM_GPUS = flags.DEFINE_integer(
  'num_gpus',
  None,
  'GPUs that this worker computes on, --batch_size images on each: 0 is the '
  'CPU alone. By default 1 where TensorFlow sees a GPU, else 0. (A ps never '
  'takes one.)',
  lower_bound=0,
)
_WIRE_DTYPE = flags.DEFINE_enum(
  'wire_dtype',
  'float32',
  ['float32', 'float16', 'bfloat16'],
  'What pulled variables and pushed gradients are cast to for the way between '
  'worker and ps. The center is float32 whatever this says.',
)
_ALLOW_SOFT_PLACEMENT = flags.DEFINE_bool(
  'allow_soft_placement',
  True,
  'Run an op that has no kernel for its device on the CPU.',
)
_LOG_DEVICE_PLACEMENT = flags.DEFINE_bool(
  'log_device_placement',
  False,
  'Print the device that each op of the training graph is given.',
)
_INTRA_OP_THREADS = flags.DEFINE_integer(
  'intra_op_parallelism_threads',
  0,
  'Threads within an op; 0 is one a core. Set it where tasks share a machine.',
  lower_bound=0,
)
_INTER_OP_THREADS = flags.DEFINE_integer(
  'inter_op_parallelism_threads',
  0,
  'Ops that run at the same time; 0 is one a core.',
  lower_bound=0,
)


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The cluster spec and this task's place in it.

  Attributes:
    ps_hosts, worker_hosts: tuples of 'host:port'; both empty for one process.
    job_name: 'ps', 'worker' or 'evaluator', which is no part of the cluster.
    task_index: int, the index within the job.
    start_timeout_secs: float, the wait for other tasks, in seconds.
    num_gpus: int, the GPUs this worker computes on.
    wire_dtype: str, the dtype of float32 tensors between worker and ps.
    told_by: str, who says all this: '' for one process that is told nothing.
    evaluator_hosts: tuple of str, as far as they are named.
    chief_title: str, what worker 0 is called there if not worker 0: the other
      workers are one less there.
  """

  ps_hosts: tuple = ()
  worker_hosts: tuple = ()
  job_name: str = 'worker'
  task_index: int = 0
  start_timeout_secs: float = 60.0
  num_gpus: int = 0
  wire_dtype: str = 'float32'
  # The cluster is the same, whoever says so.
  told_by: str = dataclasses.field(default='', compare=False)
  evaluator_hosts: tuple = dataclasses.field(default=(), compare=False)
  chief_title: str = dataclasses.field(default='', compare=False)

  @property
  def num_ps(self):
    return len(self.ps_hosts)

  @property
  def num_workers(self):
    return max(1, len(self.worker_hosts))

  @property
  def is_distributed(self):
    return bool(self.worker_hosts)

  @property
  def is_chief(self):
    return self.job_name == 'worker' and self.task_index == 0

  @property
  def name(self):
    return f'{self.job_name} {self.task_index}'

  def addresses(self, job_name):
    """Returns {'worker 0': 'host:port', ...} of one job."""
    hosts = getattr(self, f'{job_name}_hosts')
    return {f'{job_name} {i}': address for i, address in enumerate(hosts)}

  def name_there(self, name):
    """Returns the name that `told_by` has for a task, or '' if it is this."""
    job, index = name.split()
    if job != 'worker' or not self.chief_title:
      return ''
    if index == '0':
      return f'{self.chief_title} 0'
    return f'worker {int(index) - 1}'

  def describe(self):
    """Returns who is who and who this task is, a str of several lines."""
    rows = {'told by': [self.told_by or 'nobody: one process']}
    places = self.addresses('ps') | {'worker 0': 'trains alone'}
    places |= self.addresses('worker') | self.addresses('evaluator')
    places.setdefault(self.name, self.address)
    rows |= {name: [place] for name, place in places.items()}
    rows['worker 0'].append('the chief')
    for name, notes in rows.items():
      if name.startswith('evaluator'):
        notes.append('outside of the cluster')
      elif name.startswith('worker') and self.name_there(name):
        notes.append(f'{self.name_there(name)} of {self.told_by}')
    rows['this task'] = [self.name]
    width = max(map(len, rows))
    return '\n'.join(
      f'{name:<{width}}  {", ".join(notes)}' for name, notes in rows.items()
    )

  @property
  def address(self):
    return self.addresses(self.job_name).get(self.name, 'this process')

  @property
  def meeting_name(self):
    """The task through which all others talk: ps 0, else worker 0."""
    return 'ps 0' if self.num_ps else 'worker 0'

  @property
  def meeting_address(self):
    return (self.ps_hosts or self.worker_hosts)[0]

  @property
  def meeting_place(self):
    """The device prefix of the task called `meeting_name`."""
    return f'/job:{"ps" if self.num_ps else "worker"}/task:0'

  @property
  def task_device(self):
    """The device prefix of this task; empty for one process."""
    if not self.is_distributed:
      return ''
    return f'/job:{self.job_name}/task:{self.task_index}'

  @property
  def cpu_device(self):
    """Where this task's input and bookkeeping live."""
    return f'{self.task_device}/device:CPU:0'

  @property
  def tower_devices(self):
    """Where this worker's model is computed, list of str: one a GPU."""
    kind = 'GPU' if self.num_gpus else 'CPU'
    return [
      f'{self.task_device}/device:{kind}:{i}'
      for i in range(max(1, self.num_gpus))
    ]

  @property
  def compute_device(self):
    """Where this worker's copy of the center is, and its first tower."""
    return self.tower_devices[0]

  def device_setter(self, ps_strategy=None):
    """Variables go to the ps; the rest stays here.

    Args:
      ps_strategy: callable(op) -> int, which ps; by default one after the
        other.
    """
    if not self.num_ps:
      return self.compute_device
    return tf.train.replica_device_setter(
      worker_device=self.compute_device,
      ps_device='/job:ps/device:CPU:0',
      cluster=self.spec(),
      ps_strategy=ps_strategy,
    )

  def spec(self):
    jobs = {'ps': list(self.ps_hosts), 'worker': list(self.worker_hosts)}
    return tf.train.ClusterSpec({job: h for job, h in jobs.items() if h})

  def with_collectives(self, config):
    """`config` and, where there is no ps, who leads the collective ops.

    They need it in the config of the server and in that of the session.
    """
    result = tf.ConfigProto()
    result.CopyFrom(config)
    if self.is_distributed and not self.num_ps:
      leader = '/job:worker/replica:0/task:0'
      result.experimental.collective_group_leader = leader
    return result

  def session_config(self, server_config):
    """`server_config` with device filters, for the sessions of this task.

    The filters keep the other workers out of the session, so that none of
    them can hold it up. Collective ops find each other all the same.
    """
    config = self.with_collectives(server_config)
    if self.is_distributed:
      config.device_filters.extend(['/job:ps', self.task_device])
    return config


def parse_hosts(text, flag_name):
  """Returns the tuple of 'host:port' in `text` (str or None).

  Raises:
    cli.UsageError: an empty entry, no host, or a port out of 1..65535.
  """
  if text is None or not text.strip():
    return ()
  hosts = tuple(entry.strip() for entry in text.split(','))
  for entry in hosts:
    task_environment.check_address(
      entry, f'--{flag_name}', f' (the whole list: {text})'
    )
  return hosts


def make_cluster(ps_hosts, worker_hosts, job_name, task_index, **settings):
  """Checks who is who before anything starts and returns the Cluster.

  Args:
    ps_hosts, worker_hosts: tuples of 'host:port'.
    job_name: 'ps', 'worker' or None; None is right only with no hosts.
    task_index: int or None, likewise.
    **settings: further fields of Cluster.

  Raises:
    cli.UsageError: one clear line on what does not fit.
  """
  if not ps_hosts and not worker_hosts:
    if job_name == 'ps':
      raise cli.UsageError('--job_name=ps needs --ps_hosts and --worker_hosts')
    if task_index:
      raise cli.UsageError(
        f'--task_index={task_index} needs --worker_hosts: without hosts there '
        'is one worker, 0'
      )
    return Cluster(**settings)
  if not worker_hosts:
    raise cli.UsageError('--worker_hosts is empty: name at least one worker')
  if job_name is None:
    raise cli.UsageError('--job_name is missing: say ps or worker')
  hosts = ps_hosts if job_name == 'ps' else worker_hosts
  if task_index is None:
    raise cli.UsageError(
      f'--task_index is missing: say which of the {len(hosts)} {job_name} '
      'hosts this task is, from 0'
    )
  if not hosts:
    raise cli.UsageError('--job_name=ps, but --ps_hosts is empty: name one')
  if not 0 <= task_index < len(hosts):
    raise cli.UsageError(
      f'--task_index={task_index} is out of range: --{job_name}_hosts names '
      f'{len(hosts)}, so expected 0..{len(hosts) - 1}'
    )
  task_environment.check_differ(ps_hosts + worker_hosts)
  return Cluster(ps_hosts, worker_hosts, job_name, task_index, **settings)


def from_flags(environ=None, say=print):
  """Returns the Cluster of this task.

  Args:
    environ: dict of environment variables, which say who is who where no flag
      does; None for flags alone.
    say: callable that prints a line, told what is not used.

  Raises:
    cli.UsageError: one clear line on what does not fit.
  """
  environ = environ or {}
  names = task_environment.find(environ)
  is_told = any(
    flag.value is not None
    for flag in (_JOB_NAME, _TASK_INDEX, _PS_HOSTS, _WORKER_HOSTS)
  )
  identity = None if is_told else task_environment.read(environ)
  unused = names if is_told else names[1:]
  if unused:
    told_by = 'flags' if is_told else names[0]
    say(f'who is who is told by {told_by}: {", ".join(unused)} not used')
  settings = {
    'start_timeout_secs': _START_TIMEOUT_SECS.value,
    'num_gpus': _find_num_gpus(
      identity.job_name if identity else _JOB_NAME.value
    ),
    'wire_dtype': _WIRE_DTYPE.value,
  }
  if identity:
    return Cluster(**vars(identity), **settings)
  return make_cluster(
    parse_hosts(_PS_HOSTS.value, 'ps_hosts'),
    parse_hosts(_WORKER_HOSTS.value, 'worker_hosts'),
    _JOB_NAME.value,
    _TASK_INDEX.value,
    told_by='flags' if is_told else '',
    **settings,
  )


def _find_num_gpus(job_name):
  """Returns how many GPUs a task of this job computes on."""
  num_gpus = _NUM_GPUS.value
  if job_name == 'ps':
    num_gpus = 0
  elif num_gpus != 0:
    num_found = len(tf.config.list_physical_devices('GPU'))
    if num_gpus is None:
      num_gpus = min(1, num_found)
    elif num_gpus > num_found:
      raise cli.UsageError(
        f'--num_gpus={num_gpus}, but TensorFlow sees {num_found} here: see '
        'nvidia-smi and CUDA_VISIBLE_DEVICES, or give --num_gpus=0'
      )
  return num_gpus


def make_server_config(num_gpus=0):
  """The ConfigProto of a server, or of the one process: threads and GPUs."""
  config = tf.ConfigProto(
    allow_soft_placement=_ALLOW_SOFT_PLACEMENT.value,
    intra_op_parallelism_threads=_INTRA_OP_THREADS.value,
    inter_op_parallelism_threads=_INTER_OP_THREADS.value,
  )
  # Only the server's own options count for GPU memory, not a session's.
  config.gpu_options.allow_growth = True
  if not num_gpus:
    config.device_count['GPU'] = 0
    # Of what TensorFlow does to a graph before its first run, on CPUs these
    # passes alone, once, save more than they cost (docs/bytes_and_time.md).
    rewriting = config.graph_options.rewrite_options
    rewriting.optimizers.extend(['pruning', 'dependency'])
    rewriting.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
  # Idle threads that spin take the core from the other tasks of the machine.
  config.experimental.disable_thread_spinning = True
  return config


def log_placement(graph, say):
  """Prints where each op goes, if --log_device_placement asks for it.

  TensorFlow's own log of it is at a level that runtime.py silences.
  """
  if _LOG_DEVICE_PLACEMENT.value:
    for op in graph.get_operations():
      say(f'{op.name} ({op.type}): {op.device}')


def make_server(cluster, config):
  """Starts this task's server; one process without hosts needs none.

  Raises:
    cli.RunError: the port is taken, or TensorFlow refuses the spec.
  """
  if not cluster.is_distributed:
    return None
  port = int(cluster.address.rpartition(':')[2])
  _drop_proxies()
  _check_port_is_free(cluster, port)
  try:
    return tf.train.Server(
      cluster.spec(),
      cluster.job_name,
      cluster.task_index,
      config=cluster.with_collectives(config),
    )
  except tf.errors.OpError as error:
    raise cli.RunError(
      f'{cluster.name} cannot serve on {cluster.address}: {error.message}'
    ) from error


def _drop_proxies():
  """gRPC would send the traffic of the cluster through an HTTP proxy."""
  dropped = [
    name
    for name in ('http_proxy', 'https_proxy', 'all_proxy', 'grpc_proxy')
    for name in (name, name.upper())
    if os.environ.pop(name, None)
  ]
  if dropped:
    print(f'{", ".join(dropped)}: not used, as gRPC fails behind a proxy')


def _check_port_is_free(cluster, port):
  """TensorFlow's own message names neither the port nor the cause."""
  try:
    ports.check_is_free(port)
  except OSError as error:
    raise _choose_port_error()(
      f'{cluster.name} cannot listen on port {port}: {error.strerror}; stop '
      f'the process that has it or give {cluster.name} another port'
    ) from error


def _choose_port_error():
  """Returns a class of cli.RunError; who started us goes by its exit code."""
  if task_environment.FIRST_PORT in os.environ:
    return cli.PortTakenError  # Chosen by the number of the job.
  if tasks.ATTEMPT in os.environ:
    return cli.LostError  # An earlier attempt has not left yet.
  return cli.RunError


def list_tasks(addresses):
  """Returns 'worker 0 at host:port, ...' of {name: 'host:port'}, a str."""
  return list_some(f'{name} at {text}' for name, text in addresses.items())


def list_some(texts):
  """Returns 'a, b, ... and 300 more' of many texts, all of them of a few."""
  texts = list(texts)
  more = len(texts) - _MAX_LISTED
  if more > 0:
    texts[_MAX_LISTED - 1 :] = [f'{more + 1} more']
  return ', '.join(texts)


def explain(error):
  """Returns the one line (str) of a tf.errors.OpError that says what it is."""
  lines = [line.strip() for line in error.message.splitlines()]
  # It comes after the stack of the node, where there is one.
  nodes = [i for i, line in enumerate(lines) if line.startswith('Node: ')]
  start = nodes[-1] + 1 if nodes else 0
  for line in lines[start:]:
    line = line.removeprefix('Graph execution error:').strip()
    if line and not line.startswith('==='):
      return line[:200]
  return type(error).__name__


# Of more tasks a line names some, and says how many.
_MAX_LISTED = 8
_GONE = tf.errors.AbortedError, tf.errors.UnavailableError
# What the text of an error has in it where the loss of a task was its cause.
_LOST = re.compile(
  'UNAVAILABLE|ABORTED|Session handle is not found|RecvFromRemote'
)


@contextlib.contextmanager
def naming_losses():
  """Has each error that comes of a lost task be one that a session mends.

  MonitoredSession makes a new session after AbortedError and UnavailableError.
  But where several ops fail at once TensorFlow may report one that was only
  cancelled because another had lost its task.

  Raises:
    tf.errors.AbortedError: in place of such an error.
  """
  try:
    yield
  except _GONE:
    raise
  except tf.errors.OpError as error:
    if not is_loss(error):
      raise
    raise tf.errors.AbortedError(
      error.node_def, error.op, error.message
    ) from error


def is_loss(error):
  """Whether a tf.errors.OpError comes of a lost task."""
  return isinstance(error, _GONE) or bool(_LOST.search(error.message))
