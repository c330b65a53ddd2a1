"""Flags of --launcher=kubernetes: what its Pods use, and a cluster's rules."""

import ipaddress
import re

from absl import flags

from distmnist.launching.kubernetes import options, patch

GPUS = flags.DEFINE_integer(
  'kube_gpus', 0, 'Number of NVIDIA GPUs of each worker.', lower_bound=0
)
_CPU = flags.DEFINE_string(
  'kube_cpu',
  '2',
  'CPUs of each worker, as request and limit: 2, 0.5 or 500m.',
)
_MEMORY = flags.DEFINE_string(
  'kube_memory',
  '4Gi',
  'Memory of each worker, as request and limit, in bytes: 4Gi, 512Mi.',
)
_PS_CPU = flags.DEFINE_string(
  'kube_ps_cpu',
  '1',
  'CPUs of each ps, as request and limit: 2, 0.5 or 500m.',
)
_PS_MEMORY = flags.DEFINE_string(
  'kube_ps_memory',
  '1Gi',
  'Memory of each ps, as request and limit, in bytes: 4Gi, 512Mi.',
)
_TMP_SIZE = flags.DEFINE_string(
  'kube_tmp_size',
  options.TMP_SIZE,
  'Most that each Pod may write to its /tmp, in bytes: 4Gi, 512Mi. A Pod that'
  ' writes more is evicted.',
)
_NODE_SELECTOR = flags.DEFINE_list(
  'kube_node_selector',
  [],
  'KEY=VALUE,...: labels of the nodes that the Pods of the run may use.',
)
_TOLERATIONS = flags.DEFINE_list(
  'kube_tolerations',
  [],
  'KEY[=VALUE][:EFFECT],...: taints of nodes that the Pods of the run tolerate,'
  ' such as nvidia.com/gpu:NoSchedule. Without VALUE any value is tolerated,'
  ' without EFFECT every effect.',
)
_PRIORITY_CLASS = flags.DEFINE_string(
  'kube_priority_class', None, 'PriorityClass of the Pods.'
)
_PULL_SECRETS = flags.DEFINE_list(
  'kube_pull_secrets',
  [],
  'Names of the Secrets, separated by commas, with which nodes pull the image'
  ' from a private registry.',
)
_PULL_POLICY = flags.DEFINE_enum(
  'kube_pull_policy',
  None,
  ['Always', 'IfNotPresent', 'Never'],
  'When nodes pull the image. Default: that of Kubernetes, Always for the tag '
  'latest and otherwise IfNotPresent.',
)
_QUEUE = flags.DEFINE_string(
  'kube_queue',
  None,
  'LocalQueue of Kueue that admits the run: as a whole with --kind=jobset,'
  ' trainjob and tfjob, task by task with --kind=job.',
)
_TTL = flags.DEFINE_integer(
  'kube_ttl_secs',
  None,
  'Seconds from the end of a run until Kubernetes removes its tasks with their'
  ' logs. Default: they stay until they are deleted.',
  lower_bound=0,
)
_DEADLINE = flags.DEFINE_integer(
  'kube_deadline_secs',
  None,
  'Seconds after which Kubernetes ends the tasks, done or not. Default: no'
  ' limit.',
  lower_bound=1,
)
_EGRESS = flags.DEFINE_list(
  'kube_egress',
  None,
  "CIDR,...: what tasks may reach besides DNS and each other, by the run's"
  ' NetworkPolicy: 10.0.0.0/8, or 0.0.0.0/0 for all of IPv4, or none. Default:'
  ' the policy leaves outgoing traffic alone.',
)
_PATCH = flags.DEFINE_string(
  'kube_patch',
  None,
  'YAML file that is merged into the manifests (strategic merge): documents'
  ' with a kind, such as Pod, a metadata.name, such as worker, if not all are'
  ' meant, and the fields to set.',
)

LABEL = (
  r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?',
  'lowercase letters, digits and dashes (DNS-1123)',
)
NAME = r'[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?', f'a name of {LABEL[1]}'
_CPUS = (
  r'(?=.*[1-9])([0-9]+m?|[0-9]*\.[0-9]{1,3})',
  'CPUs above 0, such as 2, 0.5 or 500m',
)
_BYTES = r'[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?', 'memory such as 4Gi or 512Mi'


_VALUE = r'[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?'
_KEY = rf'([a-z0-9][-a-z0-9.]{{0,252}}/)?{_VALUE}'
_EFFECTS = 'NoSchedule', 'PreferNoSchedule', 'NoExecute'
_TOLERATION = re.compile(
  rf'(?P<key>{_KEY})(=(?P<value>({_VALUE})?))?(:(?P<effect>{"|".join(_EFFECTS)}))?'
)


def check_pattern(flag, pattern, expected, is_list=False):
  """Has a flag refuse values, or list entries, that do not fit a pattern.

  Args:
    flag: FlagHolder.
    pattern: str, a regular expression for a whole value.
    expected: str, what the pattern stands for, in words.
    is_list: bool, whether the flag takes several values.
  """
  flags.register_validator(
    flag,
    lambda value: all(
      re.fullmatch(pattern, each)
      for each in ((value or []) if is_list else [value])
      if each is not None
    ),
    f'expected {expected}',
  )


check_pattern(_CPU, *_CPUS)
check_pattern(_PS_CPU, *_CPUS)
check_pattern(_MEMORY, *_BYTES)
check_pattern(_PS_MEMORY, *_BYTES)
check_pattern(_TMP_SIZE, *_BYTES)
check_pattern(_PRIORITY_CLASS, *NAME)
check_pattern(_QUEUE, *NAME)
check_pattern(_PULL_SECRETS, *NAME, is_list=True)
check_pattern(
  _NODE_SELECTOR, rf'{_KEY}=({_VALUE})?', 'KEY=VALUE of a label', is_list=True
)
check_pattern(
  _TOLERATIONS,
  _TOLERATION.pattern,
  f'KEY, KEY=VALUE or either with :EFFECT, one of {", ".join(_EFFECTS)}',
  is_list=True,
)


@flags.validator('kube_egress', 'expected none, or networks such as 10.0.0.0/8')
def _is_egress(value):
  try:
    return value in (None, ['none']) or bool(
      [*map(ipaddress.ip_network, value)]
    )
  except ValueError:
    return False


def choose():
  """Returns what the flags say, a dict of fields of options.Options.

  Raises:
    cli.UsageError: --kube_patch is not a patch.
    cli.RunError: PyYAML is not installed.
  """
  return {
    'resources': {
      'ps': {'cpu': _PS_CPU.value, 'memory': _PS_MEMORY.value},
      'worker': {'cpu': _CPU.value, 'memory': _MEMORY.value},
    },
    'gpus': GPUS.value,
    'pod_fields': make_pod_fields(),
    'pull_policy': _PULL_POLICY.value,
    'tmp_size': _TMP_SIZE.value,
    'queue': _QUEUE.value,
    'ttl_secs': _TTL.value,
    'deadline_secs': _DEADLINE.value,
    'egress': _read_egress(),
    'patches': patch.read(_PATCH.value) if _PATCH.value else (),
  }


def make_pod_fields():
  """Returns what the flags add to the spec of each Pod, a dict."""
  fields = {
    'nodeSelector': dict(each.split('=', 1) for each in _NODE_SELECTOR.value),
    'tolerations': [_make_toleration(each) for each in _TOLERATIONS.value],
    'priorityClassName': _PRIORITY_CLASS.value,
    'imagePullSecrets': [{'name': name} for name in _PULL_SECRETS.value],
  }
  return {name: value for name, value in fields.items() if value}


def _make_toleration(text):
  found = _TOLERATION.fullmatch(text)
  toleration = {'key': found['key']}
  if found['value'] is None:
    toleration['operator'] = 'Exists'
  else:
    toleration |= {'operator': 'Equal', 'value': found['value']}
  return toleration | ({'effect': found['effect']} if found['effect'] else {})


def _read_egress():
  if _EGRESS.value is None:
    return None
  return () if _EGRESS.value == ['none'] else tuple(_EGRESS.value)
