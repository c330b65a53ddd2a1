"""Starts launch or sweep as a process that ends with its starter.

Its flags go through a pipe: every user of a machine can read the command lines
of its processes, and a setting of Spark's may be a password.
"""

import contextlib
import json
import os
import subprocess
import sys

from distmnist.common import lifeline
from distmnist.common.names import SORTED_FLAGS


def start(program, words, env=None, **settings):
  """Starts a program, and gives it its flags.

  Args:
    program: 'launch' or 'sweep'.
    words: list of str, its words and flags and those of train, in any order.
    env: dict of str -> str, in addition to this process's environment.
    **settings: of subprocess.Popen.

  Returns:
    (process, fd): subprocess.Popen, and what the caller closes once it has
    ended; if the caller ends before, the program is told to.
  """
  reader, kept = os.pipe()
  words_reader, words_writer = os.pipe()
  try:
    process = subprocess.Popen(
      [sys.executable, '-m', SORTED_FLAGS, program],
      stdin=words_reader,
      env={**os.environ, **lifeline.give(reader), **(env or {})},
      pass_fds=[reader],
      start_new_session=True,  # Ctrl-C reaches the caller, which stops this.
      **settings,
    )
  except BaseException:
    os.close(kept)
    os.close(words_writer)
    raise
  finally:
    os.close(reader)
    os.close(words_reader)
  # One that has ended says why elsewhere.
  with (
    contextlib.suppress(BrokenPipeError),
    open(words_writer, 'w', encoding='utf-8') as file,
  ):
    json.dump(words, file)
  return process, kept


def read_words():
  """Returns the flags (list of str) that `start` has given this process."""
  return json.load(sys.stdin)
