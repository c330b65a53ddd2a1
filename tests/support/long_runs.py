"""distmnist.train whose runs are as long as they may be, on any machine."""

from distmnist import train
from distmnist.exchange.steps import run_length

run_length.RUN_SECS = 60.0

if __name__ == '__main__':
  train.run()
