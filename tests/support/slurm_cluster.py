"""A real Slurm of one node on loopback: munged, slurmctld and slurmd."""

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
# The node has more cores than the machine: a job of several tasks shall start.
_CONFIG = """
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=12
NodeName={node} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
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
def start(folder):
  """Runs a Slurm until the end of the context; its files are in `folder`.

  Yields:
    The path of slurm.conf, which clients find in SLURM_CONF.
  """
  folder = pathlib.Path(folder)
  folder.chmod(0o755)  # munged mistrusts its socket elsewhere.
  config = folder / 'slurm.conf'
  for name in ('state', 'spool'):
    (folder / name).mkdir()
  (folder / 'key').write_bytes(os.urandom(1024))
  (folder / 'key').chmod(0o600)
  held = ports.hold_ports(2)
  config.write_text(
    _CONFIG.format(
      folder=folder,
      node=socket.gethostname().partition('.')[0],
      user=getpass.getuser(),
      ports=[each.getsockname()[1] for each in held],
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
    run('slurmd', '-D', '-f', config)
    _wait_until(folder, 'slurmctld.out', lambda: _is_idle(env))
    yield config


@contextlib.contextmanager
def _daemon(folder, env, program, *words):
  with open(folder / f'{program}.out', 'wb') as out:
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
      daemon.wait(20)
    except subprocess.TimeoutExpired:
      daemon.kill()
      daemon.wait()


def _is_idle(env):
  done = subprocess.run(
    ['sinfo', '--noheader', '--format=%T'],
    env=env,
    capture_output=True,
    text=True,
    timeout=60,
  )
  return done.stdout.strip() == 'idle'


def _wait_until(folder, log, condition):
  deadline = time.monotonic() + 120
  while not condition():
    assert time.monotonic() < deadline, (folder / log).read_text()
    time.sleep(0.05)
