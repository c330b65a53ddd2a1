"""child_program: flags that nobody reads in a list of processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from distmnist.common import child_program
from tests.support.paths import REPO

_SAYS = """
import json
import sys

from distmnist.common import child_program

with open('/proc/self/cmdline') as file:
  print(json.dumps([file.read(), child_program.read_words()]))
"""
_PROGRAM = """
import os, signal, sys, time
from distmnist.common import child_program

signal.signal(signal.SIGTERM, lambda *_: (print('told'), sys.exit(5)))
child_program.end_with_starter()
print('follows', 'DISTMNIST_STARTER_PIPE' in os.environ, flush=True)
time.sleep(60)
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


@pytest.mark.slow
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


def start_of_lifeline(env, reader):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, **env},
    pass_fds=[reader],
  )


def test_the_end_of_the_pipe_is_a_sigterm():
  reader, writer = os.pipe()
  with start_of_lifeline(child_program.give_pipe(reader), reader) as program:
    os.close(reader)
    assert program.stdout.readline() == 'follows False\n'
    os.write(writer, b'a word is no end')
    assert program.poll() is None
    os.close(writer)
    assert program.stdout.read() == 'told\n'
    assert program.wait(60) == 5


@pytest.mark.slow
def test_without_one_nothing_is_followed():
  reader, writer = os.pipe()
  with start_of_lifeline({}, reader) as program:
    assert program.stdout.readline() == 'follows False\n'
    os.close(reader)
    os.close(writer)
    program.send_signal(signal.SIGTERM)
    assert program.stdout.read() == 'told\n'
