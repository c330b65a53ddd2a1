"""Dealings of small trainings, and the places that tickets stand for."""

import collections

from distmnist.training.batches import batch_table

BATCH = 5


def make_dealing(num_workers=2, unit=1, last_step=40, **how):
  return batch_table.Dealing(
    num_workers, BATCH, unit, last_step, how.pop('is_lock_step', False), **how
  )


def count_places(table, ranges_of_tickets, worker=0):
  """Returns the places of tickets, as a Counter."""
  rest = batch_table.read_rest(table, worker)
  places = collections.Counter()
  for first, end in ranges_of_tickets:
    places.update(rest.find_places(first * BATCH, end * BATCH).tolist())
  return places
