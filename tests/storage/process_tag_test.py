"""process_tag: a name tells whether its process lives."""

import os
import subprocess

from distmnist.storage import process_tag


def test_a_tag_tells_whether_its_process_has_ended():
  assert process_tag.is_tag_dead(process_tag.make_tag()) is False
  machine, pid, start = process_tag.make_tag().split('-')
  assert process_tag.is_tag_dead(f'{machine}-{pid}-{int(start) - 1}')
  assert process_tag.is_tag_dead(f'01234567-{pid}-{start}') is None
  assert process_tag.is_tag_dead('01234567') is None


def test_a_zombie_has_ended():
  process = subprocess.Popen(['cat'], stdin=subprocess.PIPE)
  assert process_tag.read_start(process.pid)
  process.stdin.close()
  os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
  assert process_tag.read_start(process.pid) is None
  process.wait()
