"""child_program: flags that nobody reads in a list of processes."""

import contextlib
import json
import os
import subprocess

from distmnist.common import child_program
from tests.support.paths import REPO

_SAYS = """
import json
import sys

from distmnist.common import child_program

with open('/proc/self/cmdline') as file:
  print(json.dumps([file.read(), child_program.read_words()]))
"""


def start(tmp_path, monkeypatch, text, words):
  (tmp_path / 'child.py').write_text(text)
  monkeypatch.setattr(child_program, 'SORTED_FLAGS', 'child')
  env = {'PYTHONPATH': f'{tmp_path}:{REPO}'}
  process, kept = child_program.start(
    'launch', words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
  )
  with process, open(kept, 'wb'):
    return process.stdout.read()


def find_pipes():
  """Returns the pipes of this process, where other threads may close some."""
  pipes = set()
  for fd in os.listdir('/proc/self/fd'):
    with contextlib.suppress(FileNotFoundError):
      pipes.add((fd, os.readlink(f'/proc/self/fd/{fd}')))
  return {(fd, target) for fd, target in pipes if target.startswith('pipe:')}


def test_no_flag_is_on_the_command_line(tmp_path, monkeypatch):
  secret = '--spark_conf=spark.ssl.keyPassword=hunter2\n\u00e4'
  words = [secret, *['--x'] * 50000]  # More than a pipe holds.
  line, found = json.loads(start(tmp_path, monkeypatch, _SAYS, words))
  assert found == words
  assert line.split('\0')[1:] == ['-m', 'child', 'launch', '']


def test_a_program_that_ends_at_once_is_no_error_here(tmp_path, monkeypatch):
  before = find_pipes()
  assert start(tmp_path, monkeypatch, 'print(1)', ['--x'] * 50000) == b'1\n'
  assert find_pipes() <= before
