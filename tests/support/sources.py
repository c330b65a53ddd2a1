"""Batch sources of small trainings, in lock-step unless told otherwise."""

import numpy as np

from distmnist.data import split
from distmnist.logdir import history
from distmnist.training.batches import batch_source, batch_table

BATCH = 4
NUM_IMAGES = 30
EXAMPLES = split.Split(np.arange(NUM_IMAGES), np.arange(NUM_IMAGES))


def make_dealing(num_workers=2, unit=1, last_step=12, lock_step=True, **how):
  return batch_table.Dealing(
    num_workers, BATCH, unit, last_step, lock_step, **how
  )


def make_source(dealing, worker=0, seed=3, examples=EXAMPLES):
  return batch_source.BatchSource(
    dealing, examples, seed, worker, 'fed', history.History()
  )
