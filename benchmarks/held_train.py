"""distmnist.train, whose last worker comes late; for scale.py.

That worker opens the pipe $HELD_BY before anything else, and so waits there
until somebody opens the other end.
"""

import os
import sys

from distmnist import train
from distmnist.common import command_line


def run():
  words = sys.argv[1:]
  workers = (command_line.find_value(words, 'worker_hosts') or '').split(',')
  last = 'worker', str(len(workers) - 1)
  names = 'job_name', 'task_index'
  if tuple(command_line.find_value(words, name) for name in names) == last:
    with open(os.environ['HELD_BY'], 'rb'):
      pass
  train.run()


if __name__ == '__main__':
  run()
