"""distmnist.train whose runs have ten steps, on any machine."""

from distmnist import train
from distmnist.exchange.steps import run_length

RUN_SECS, PREPARE_SECS, MAX_STEPS = 60.0, 1e-6, 10

if __name__ == '__main__':
  run_length.RUN_SECS = RUN_SECS
  run_length.PREPARE_SECS = PREPARE_SECS
  run_length.MAX_STEPS = MAX_STEPS
  train.run()
