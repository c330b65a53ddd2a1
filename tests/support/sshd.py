"""A real sshd on loopback, with keys and a configuration of its own."""

import contextlib
import getpass
import os
import pathlib
import shutil
import subprocess
import time

from distmnist.common import ports

# Two hosts on one machine; the third does not answer.
HOSTS = '127.0.0.1', '127.0.0.2'
SILENT_HOST = '127.0.0.3'

# HOME: a login shell reads no ~/.bashrc of ours, which may print something.
_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups {max_startups}
SetEnv HOME={folder}
"""
_CLIENT_CONFIG = """
Host *
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def why_not():
  """Returns why there is no sshd to be had (str), '' if there is."""
  path = find_sshd()
  if not path:
    return 'no sshd: apt-get install openssh-server'
  if not shutil.which('ssh') or not shutil.which('ssh-keygen'):
    return 'no ssh: apt-get install openssh-client'
  return ''


def find_sshd():
  return shutil.which('sshd', path=f'{os.environ["PATH"]}:/usr/sbin:/sbin')


@contextlib.contextmanager
def start(folder, max_startups=10):
  """Runs sshd until the end of the context, with all that it needs in `folder`.

  `folder/config` is for `ssh -F`, `folder/stranger` is a key that is refused.
  While `max_startups` connections are being made, more are turned away.
  """
  folder = pathlib.Path(folder)
  for name in ('host_key', 'key', 'stranger'):
    subprocess.run(
      ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', folder / name],
      check=True,
    )
  with ports.hold_ports(1)[0] as held:
    port = held.getsockname()[1]
  names = {'port': port, 'folder': folder, 'max_startups': max_startups}
  (folder / 'sshd_config').write_text(_CONFIG.format(**names))
  (folder / 'config').write_text(_CLIENT_CONFIG.format(**names))
  host_key = (folder / 'host_key.pub').read_text()
  (folder / 'known_hosts').write_text(
    ''.join(f'[{host}]:{port} {host_key}' for host in HOSTS)
  )
  if os.getuid() == 0:
    # The empty folder that sshd asks for when root starts it.
    os.makedirs('/run/sshd', 0o755, exist_ok=True)
  with open(folder / 'sshd.log', 'wb') as log:
    sshd = subprocess.Popen(
      [find_sshd(), '-D', '-e', '-f', folder / 'sshd_config'],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
  try:
    _wait_until_it_listens(sshd, folder / 'sshd.log')
    yield folder
  finally:
    sshd.terminate()
    sshd.wait(60)


def _wait_until_it_listens(sshd, log):
  deadline = time.monotonic() + 60
  while log.read_text().count('Server listening') < len(HOSTS):
    assert sshd.poll() is None, log.read_text()
    assert time.monotonic() < deadline, log.read_text()
    time.sleep(0.01)


def login(host):
  return f'{getpass.getuser()}@{host}'
