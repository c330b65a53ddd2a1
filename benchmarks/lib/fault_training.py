"""A training under any rule with faults in it, and what must hold after."""

import functools
import shutil
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.logdir import checkpoints, invariants
from lib import fault_checker, fault_files, fault_hosts, fault_kinds, fault_run

NUM_PS, NUM_WORKERS = 2, 3
LOCAL_ADAM = ['--local_optimizer=adam', '--local_learning_rate=0.003']
# A few seconds of work each; the steps are the last flag.
RULES = {
  'sync_sgd': ['--train_steps=1200'],
  'sync_sgd with a backup': ['--replicas_to_aggregate=2', '--train_steps=1600'],
  'sync_sgd by shards': [
    '--sync_barrier=shard',
    '--max_shard_mib=0.02',
    '--train_steps=1200',
  ],
  'sync_sgd by shards with a backup': [
    '--sync_barrier=shard',
    '--max_shard_mib=0.02',
    '--replicas_to_aggregate=2',
    '--train_steps=1600',
  ],
  'easgd': [*LOCAL_ADAM, '--train_steps=1000'],
  'easgd in lock-step': ['--easgd_sync', *LOCAL_ADAM, '--train_steps=600'],
  'ad_psgd': [*LOCAL_ADAM, '--train_steps=4000'],
  'agn': ['--communication_period=3', '--train_steps=1500'],
  'dynsgd': ['--communication_period=3', '--train_steps=1500'],
  'sagn': ['--communication_period=3', '--train_steps=500'],
  'bmuf': ['--communication_period=5', '--train_steps=400'],
  'bmuf with delayed Nesterov': [
    '--delayed_nesterov=3',
    '--communication_period=5',
    '--train_steps=1200',
  ],
  'ssp': ['--ssp_bound=3', '--train_steps=3000'],
  'dc_asgd': ['--dc_lambda=0.04', '--train_steps=4000'],
  'ring_allreduce': ['--seed=1', '--train_steps=1000'],
}
RULES |= {
  name: ['--train_steps=5000']
  for name in registry.names(STRATEGIES)
  if name not in RULES
}
RULES = {
  name: [f'--strategy={name.split()[0]}', *flags]
  for name, flags in RULES.items()
}
WITHOUT_PS = {'ring_allreduce'}
# A fault changes no bit of the weights at the end.
EXACT = {'ring_allreduce'}
# What the workers still hold at the end may be surplus.
LEAVING = {'sync_sgd with a backup', 'sync_sgd by shards with a backup'}
# Under any rule. Without faults the mlp reaches 0.95 or more; the net of tasks
# on hosts of their own reaches 0.83 under bmuf and more under the others.
LEAST_ACCURACY = {'mlp': 0.85, 'softmax': 0.75}


def count_tasks(rule):
  """Returns (number of ps, number of workers)."""
  return 0 if rule in WITHOUT_PS else NUM_PS, NUM_WORKERS


def run_with_faults(rule, faults, extra=(), keep=None):
  """Runs a training with `faults`, in order, and fills them in.

  Args:
    rule: str, a key of RULES.
    faults: list of fault_kinds.Fault.
    extra: list of str, train's flags that come last.
    keep: path to which a run with a problem has its logs copied, or None.

  Returns:
    (problem or '', report or None).

  Raises:
    fault_files.CannotError, network.CannotError: this machine cannot have it.
  """
  kinds = {fault.kind for fault in faults}
  on_hosts = kinds & fault_kinds.ON_HOSTS
  make_run = fault_hosts.HostsRun if on_hosts else fault_run.Run
  with tempfile.TemporaryDirectory() as folder:
    files = None
    if kinds & {*fault_files.WRITE_ERRORS}:
      files = fault_files.Files(folder, f'{folder}/run')
    flags = [*RULES[rule], *extra]
    run = make_run(folder, flags, *count_tasks(rule), files=files)
    problem, report = 'broken off', None
    try:
      problem, report = do_faults(run, faults, rule)
    finally:
      run.close()
      if keep and (problem or any(f.violations for f in faults)):
        shutil.copytree(folder, keep, dirs_exist_ok=True)
  return problem, report


def do_faults(run, faults, rule):
  """Injects `faults` into a run, in order, and waits for its end.

  Args:
    run: fault_run.Run.
    faults: list of fault_kinds.Fault, filled in.
    rule: str, a key of RULES.

  Returns:
    (problem or '', report or None).
  """
  done = []
  for fault in faults:
    mark = fault.mark * run.last_step
    # All workers are under way.
    ready = run.wait_until(
      lambda mark=mark: run.step >= mark and all(w.step for w in run.workers),
      limit_secs=300,
    )
    if not ready:
      fault.note = 'the training was over' if not run.is_running else 'no start'
      break
    done.append(fault)
    fault_kinds.inject(run, fault)
    if not fault.is_survived:
      run.close()
      return f'{fault}', None
  problem, report = run.finish()
  accuracy = report and report['test_accuracy']
  if report and accuracy < LEAST_ACCURACY[report['flags']['model']]:
    problem = problem or f'accuracy {accuracy}'
  for fault in done[-1:] or faults[:1]:
    fault.violations = find_violations(run, report, rule)
    if report and rule in EXACT:
      fault.violations += find_other_weights(run, rule)
    fault.is_survived = not problem
  return problem, report


def find_other_weights(run, rule):
  """Returns what differs from a run without faults, a list of str."""
  whole = train_whole(type(run), rule, *run.own_flags)
  found = read_weights(run.logdir)
  return [
    f'{name} is not what it is without a fault'
    for name, value in whole.items()
    if not np.array_equal(found[name], value)
  ]


@functools.cache
def train_whole(make_run, rule, *flags):
  """Returns the weights {name: array} that a run without faults ends with."""
  with tempfile.TemporaryDirectory() as folder:
    run = make_run(folder, [*flags], *count_tasks(rule))
    try:
      problem, _ = run.finish()
    finally:
      run.close()
    if problem:
      raise SystemExit(f'{rule}, without a fault: {problem}')
    return read_weights(run.logdir)


def read_weights(logdir):
  """Returns all {name: array} of the newest checkpoint but how batches went."""
  reader = tf.train.load_checkpoint(checkpoints.find_latest(str(logdir)))
  names = reader.get_variable_to_shape_map().keys() - {'stream'}
  return {name: reader.get_tensor(name) for name in names}


def find_violations(run, report, rule):
  """Returns the invariants that a run breaks, a list of str."""
  events = run.read_history()
  of_report = []
  if report:
    of_report = [
      *invariants.check_invariants(report),
      *fault_checker.check_best(
        events,
        report['best_step'],
        report['validation_accuracy'],
        run.find_kept_step(),
      ),
    ]
  return [
    *fault_checker.check(
      events,
      may_leave=rule in LEAVING,
      logs={
        int(name.split()[1]): log.lines
        for name, log in run.logs.items()
        if name.startswith('worker')
      },
      frozen=[
        (int(name.split()[1]), since, until)
        for name, since, until in run.frozen
        if name.startswith('worker')
      ],
    ),
    *of_report,
  ]
