"""A process that ends when the one that has started it is gone.

The starter holds one end of a pipe, and the kernel closes it when the starter
ends, however it does. (PR_SET_PDEATHSIG would follow the thread that has called
fork, and a notebook runs in threads.)
"""

import os
import signal
import threading

_NUMBER = 'DISTMNIST_LIFELINE'


def give(reader):
  """Returns the variables, a dict, that have a program `follow` a pipe.

  Args:
    reader: int, the descriptor of its reading end, which the program inherits.
  """
  return {_NUMBER: str(reader)}


def follow():
  """Has this process get SIGTERM when its starter is gone, if it was asked to.

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
