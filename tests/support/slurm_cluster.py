"""A real Slurm on loopback: munged, slurmctld and a slurmd for each node."""

import contextlib
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

from distmnist.common import ports

_PROGRAMS = {
  'munged': 'munge',
  'slurmctld': 'slurmctld',
  'slurmd': 'slurmd',
  'sbatch': 'slurm-client',
}
# A node has more cores than the machine, so that a job of several tasks starts.
# A heterogeneous job is started by the backfill scheduler alone.
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=9
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 MaxTime=INFINITE State=UP
"""


def why_not():
  """Returns why there is no Slurm to be had (str), '' if there is."""
  missing = [package for name, package in _PROGRAMS.items() if not find(name)]
  if missing:
    return f'no Slurm: apt-get install {" ".join(missing)}'
  return ''


def find(program):
  return shutil.which(program, path=f'{os.environ["PATH"]}:/usr/sbin:/sbin')


@contextlib.contextmanager
def start(folder, num_nodes=1):
  """Runs a Slurm until the end of the context; its files are in `folder`.

  One node has the name of this machine; several are called n1, n2, ..., which
  no other program knows.

  Yields:
    The path of slurm.conf, which clients find in SLURM_CONF.
  """
  folder = pathlib.Path(folder)
  folder.chmod(0o755)  # munged mistrusts its socket elsewhere.
  config = folder / 'slurm.conf'
  host = socket.gethostname().partition('.')[0]
  nodes = [f'n{i + 1}' for i in range(num_nodes)] if num_nodes > 1 else [host]
  for name in ('state', *(f'spool-{node}' for node in nodes)):
    (folder / name).mkdir()
  (folder / 'key').write_bytes(os.urandom(1024))
  (folder / 'key').chmod(0o600)
  held = ports.hold_ports(1 + num_nodes)
  port, *node_ports = [each.getsockname()[1] for each in held]
  config.write_text(
    _CONFIG.format(
      folder=folder,
      host=host,
      user=getpass.getuser(),
      port=port,
      nodes='\n'.join(
        f'NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1'
        f' Port={node_port} CPUs=16 State=UNKNOWN'
        for node, node_port in zip(nodes, node_ports, strict=True)
      ),
    )
  )
  for each in held:
    each.close()
  env = {**os.environ, 'SLURM_CONF': str(config)}
  with contextlib.ExitStack() as stack:

    def run(program, *words):
      stack.enter_context(_daemon(folder, env, program, *words))

    files = {
      'key-file': 'key',
      'socket': 'munge.socket',
      'pid-file': 'munged.pid',
      'seed-file': 'munged.seed',
      'log-file': 'munge.log',
    }
    words = [f'--{name}={folder}/{file}' for name, file in files.items()]
    run('munged', '--foreground', '--force', *words)
    _wait_until(folder, 'munged.out', (folder / 'munge.socket').exists)
    run('slurmctld', '-D', '-i', '-f', config)
    for node in nodes:
      run('slurmd', '-N', node, '-D', '-f', config)
    _wait_until(folder, 'slurmctld.out', lambda: _are_idle(env, num_nodes))
    yield config


@contextlib.contextmanager
def _daemon(folder, env, program, *words):
  with open(folder / f'{program}.out', 'ab') as out:
    daemon = subprocess.Popen(
      [find(program), *words],
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=out,
      stderr=out,
      start_new_session=True,
    )
  try:
    yield
  finally:
    daemon.terminate()
    try:
      daemon.wait(60)
    except subprocess.TimeoutExpired:
      daemon.kill()
      daemon.wait()


def _are_idle(env, num_nodes):
  done = subprocess.run(
    ['sinfo', '--noheader', '--Node', '--partition=main', '--format=%T'],
    env=env,
    capture_output=True,
    text=True,
    timeout=200,
  )
  return done.stdout.split() == ['idle'] * num_nodes


def _wait_until(folder, log, condition):
  deadline = time.monotonic() + 120
  while not condition():
    assert time.monotonic() < deadline, (folder / log).read_text()
    time.sleep(0.05)
