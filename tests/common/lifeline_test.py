"""lifeline: a program ends when the one that has started it is gone."""

import os
import signal
import subprocess
import sys

from distmnist.common import lifeline

_PROGRAM = """
import os, signal, sys, time
from distmnist.common import lifeline

signal.signal(signal.SIGTERM, lambda *_: (print('told'), sys.exit(5)))
lifeline.follow()
print('follows', 'DISTMNIST_LIFELINE' in os.environ, flush=True)
time.sleep(60)
"""


def start(env, reader):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, **env},
    pass_fds=[reader],
  )


def test_the_end_of_the_pipe_is_a_sigterm():
  reader, writer = os.pipe()
  with start(lifeline.give(reader), reader) as program:
    os.close(reader)
    assert program.stdout.readline() == 'follows False\n'
    os.write(writer, b'a word is no end')
    assert program.poll() is None
    os.close(writer)
    assert program.stdout.read() == 'told\n'
    assert program.wait(30) == 5


def test_without_one_nothing_is_followed():
  reader, writer = os.pipe()
  with start({}, reader) as program:
    assert program.stdout.readline() == 'follows False\n'
    os.close(reader)
    os.close(writer)
    program.send_signal(signal.SIGTERM)
    assert program.stdout.read() == 'told\n'
