"""What the manifests of a run on Kubernetes are made from."""

import dataclasses

# /tmp is on the node's disk: a Pod that writes more is evicted before it harms
# its neighbours.
TMP_SIZE = '2Gi'


@dataclasses.dataclass(frozen=True)
class Options:
  """What the manifests need to know beyond the jobs.Job.

  Attributes:
    kind: 'job', 'jobset', 'trainjob' or 'tfjob'.
    name: str, of the run: all names begin with it, and it is the label `run`.
    namespace: str, or None for that of kubectl's context.
    image: str.
    resources: dict of 'ps' and 'worker' -> dict of 'cpu' and 'memory' ->
      quantity (str), both the request and the limit of each task.
    gpus: int, NVIDIA GPUs of each worker.
    claims: dict of path -> PersistentVolumeClaim that workers mount there.
    user: int, ID of the user and of the group that the tasks run as.
    logdir: str or None.
    tensorboard: bool, whether a TensorBoard shows the logdir.
    stop_grace_secs: float, within which a task that is told to stop has left.
    train_flags: tuple of str, for every task.
    problem: bytes, the file of --problem, or None.
    pod_fields: dict, more fields for the spec of each Pod.
    pull_policy: str, when nodes pull the image, or None.
    tmp_size: quantity (str), the most that a Pod may write to /tmp.
    queue: str, Kueue's, or None.
    ttl_secs: int, after which a finished run is removed, or None.
    deadline_secs: int, after which a run is ended, or None.
    egress: tuple of CIDRs (str) that tasks may reach besides each other and
      DNS, or None for anything.
    patches: tuple of patch.Patch.
    launch: str, the label `launch` of what one launcher creates and watches;
      None for manifests that are printed, which are the same each time.
  """

  kind: str
  name: str
  namespace: str | None
  image: str
  resources: dict
  gpus: int
  claims: dict
  user: int
  logdir: str | None
  tensorboard: bool
  stop_grace_secs: float
  train_flags: tuple[str, ...]
  problem: bytes | None = None
  pod_fields: dict = dataclasses.field(default_factory=dict)
  pull_policy: str | None = None
  tmp_size: str = TMP_SIZE
  queue: str | None = None
  ttl_secs: int | None = None
  deadline_secs: int | None = None
  egress: tuple[str, ...] | None = None
  patches: tuple = ()
  launch: str | None = None

  def find_resources(self, job_name):
    """Returns a task's resources (dict); an evaluator has those of a worker."""
    return self.resources['ps' if job_name == 'ps' else 'worker']
