"""A task that starts and ends, for scale.py; with --wait, it ends by a signal.

It accepts all flags that a launcher gives to a task of train.
"""

import signal
import sys


def run():
  print('here', flush=True)
  if '--wait' in sys.argv:
    signal.pause()


if __name__ == '__main__':
  run()
