"""Ends a process when the one that started it is gone.

The starter holds one end of a pipe, and the kernel closes it when the starter
ends, for whatever reason. (PR_SET_PDEATHSIG would follow the thread that called
fork, and a notebook runs in threads.)
"""

import os
import signal
import threading

_NUMBER = 'DISTMNIST_LIFELINE'


def give(reader):
  """Returns the variables (dict) that make a program `follow` a pipe.

  Args:
    reader: int, the descriptor of its reading end, which the program inherits.
  """
  return {_NUMBER: str(reader)}


def follow():
  """Sends this process SIGTERM once its starter is gone, if it was asked to.

  Programs that this one starts do not follow.
  """
  number = os.environ.pop(_NUMBER, None)
  if number is None:
    return
  os.set_inheritable(int(number), False)
  threading.Thread(target=_watch, args=[int(number)], daemon=True).start()


def _watch(reader):
  while os.read(reader, 64):
    pass
  os.kill(os.getpid(), signal.SIGTERM)
