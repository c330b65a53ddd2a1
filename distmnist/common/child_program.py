"""Starts launch or sweep as a process that ends with its starter.

Its flags go through a pipe: every user of a machine can read the command lines
of its processes, and a setting of Spark's may be a password. The starter holds
one end of another pipe, which the kernel closes when the starter ends, for
whatever reason. (PR_SET_PDEATHSIG would follow the thread that called fork, and
a notebook runs in threads.)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from distmnist.common.names import SORTED_FLAGS

_PIPE_NUMBER = 'DISTMNIST_STARTER_PIPE'


def start(
  program: str,
  words: Sequence[str],
  env: Mapping[str, str] | None = None,
  **settings: Any,
) -> tuple[subprocess.Popen, int]:
  """Starts a program, and gives it its flags.

  Args:
    program: 'launch' or 'sweep'.
    words: its words and flags and those of train, in any order.
    env: in addition to this process's environment.
    **settings: of subprocess.Popen.

  Returns:
    (process, fd): the latter is what the caller closes once the process has
    ended; if the caller ends before, the program is told to.
  """
  reader, kept = os.pipe()
  words_reader, words_writer = os.pipe()
  try:
    process = subprocess.Popen(
      [sys.executable, '-m', SORTED_FLAGS, program],
      stdin=words_reader,
      env={**os.environ, **give_pipe(reader), **(env or {})},
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


def read_words() -> list[str]:
  """Returns the flags that `start` has given this process."""
  return json.load(sys.stdin)


def give_pipe(reader: int) -> dict[str, str]:
  """Returns the variables that have a program `end_with_starter`.

  Args:
    reader: the descriptor of its reading end, which the program inherits.
  """
  return {_PIPE_NUMBER: str(reader)}


def end_with_starter() -> None:
  """Sends this process SIGTERM once its starter is gone, if it was asked to.

  Programs that this one starts do not end with it.
  """
  number = os.environ.pop(_PIPE_NUMBER, None)
  if number is None:
    return
  os.set_inheritable(int(number), False)
  threading.Thread(target=_watch, args=[int(number)], daemon=True).start()


def _watch(reader: int) -> None:
  while os.read(reader, 64):
    pass
  os.kill(os.getpid(), signal.SIGTERM)
