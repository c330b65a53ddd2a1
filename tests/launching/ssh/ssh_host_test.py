"""The command line of ssh."""

from distmnist.launching.ssh import ssh_host


def test_the_options_of_the_user_come_first_as_ssh_takes_the_first():
  words = ssh_host.ssh_command('me@host', 'true', ['-o', 'BatchMode=no'])
  assert words[:4] == ['ssh', '-T', '-o', 'BatchMode=no']
  assert words[-3:] == ['--', 'me@host', 'true']
