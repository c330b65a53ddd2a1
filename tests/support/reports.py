"""Reports of two workers, as small as they can be."""

import collections

from distmnist.logdir import report


def make_workers():
  return [
    report.WorkerStats(
      *(0, 5, 50, 0.8, 4, 5, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6),
      collections.Counter({0: 3, 1: 2}),
      timed_examples_of_all=9877,
      has_ended=True,
    ),
    report.WorkerStats(
      *(1, 3, 30, 0.9, 2, 3, 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6),
      collections.Counter({1: 1, 4: 2}),
      has_ended=True,
    ),
  ]


def compose(max_staleness=None, lives=None, **outcome):
  outcome = {
    'test_accuracy': 0.91239,
    'test_metrics': {'accuracy': 0.91239},
    'validation_metrics': None,
    'global_step': 8,
    'unit': 'images',
    'best_step': None,
    'validation_accuracy': None,
    'total_secs': 12.34,
    'train_secs': 5.06,
    'final_loss': 0.25,
    'workers_not_heard_of': [],
    **outcome,
  }
  return report.compose(
    {'flags': {}}, outcome, lives or make_workers(), max_staleness
  )
