"""worker_records: what each process of a run has done, from its metrics."""

import collections

import pytest

from distmnist.logdir import report, worker_records
from distmnist.watching import metrics_file


def make_stats(worker=0, life='a', local_steps=3, start=1.0):
  return report.WorkerStats(
    worker,
    local_steps,
    examples=10 * local_steps,
    staleness=collections.Counter({0: local_steps}),
    batch_size=10,
    life=life,
    start=start,
    sessions=[[0, local_steps]],
    rows=collections.Counter({'rows/ids': 7}),
  )


def make_writer(logdir, stats):
  return metrics_file.Writer(str(logdir), f'worker {stats.worker}', stats.life)


def write(logdir, *many, state='training'):
  """Writes the metrics of one life after the other, a sample each."""
  for stats in many:
    writer = make_writer(logdir, stats)
    writer.write('sample', state=state, **stats.to_fields())


def test_a_life_is_its_last_sample(tmp_path):
  stats = make_stats(local_steps=1)
  writer = make_writer(tmp_path, stats)
  writer.write('sample', state='starting')
  assert worker_records.read(str(tmp_path)) == []
  for steps in 1, 2, 3:
    stats = make_stats(local_steps=steps)
    writer.write('sample', state='training', **stats.to_fields())
    assert worker_records.read(str(tmp_path)) == [stats]
  writer.write('sample', state='ending', **stats.to_fields())
  stats.has_ended = True
  assert worker_records.read(str(tmp_path)) == [stats]


def test_who_made_no_step_is_no_life(tmp_path):
  write(tmp_path, make_stats(local_steps=0))
  assert worker_records.read(str(tmp_path)) == []
  assert worker_records.read(str(tmp_path / 'none'), {0, 1}) == []


def test_all_lives_are_gathered_in_order(tmp_path):
  old = [
    make_stats(1, 'z', start=1.0),
    make_stats(1, 'c', start=2.0),
    make_stats(2, 'e'),  # It is gone: nobody hears of it at the end.
  ]
  present = [
    make_stats(1, 'b', start=3.0),
    make_stats(0, 'd', local_steps=0, start=3.0),
  ]
  write(tmp_path, *old, *present)
  # What came by a message is later than what is in the file.
  present[0].local_steps = 5
  found, unknown = worker_records.gather(str(tmp_path), present)
  assert [(s.worker, s.life, s.local_steps) for s in found] == [
    (0, 'd', 0),
    (1, 'z', 3),
    (1, 'c', 3),
    (1, 'b', 5),
    (2, 'e', 3),
  ]
  assert unknown == []


def test_a_process_that_found_all_done_is_no_further_life(tmp_path):
  before = make_stats(0, 'a')
  write(tmp_path, before)
  found, unknown = worker_records.gather(str(tmp_path), [make_stats(0, 'b', 0)])
  assert (found, unknown) == ([before], [])


def test_who_shares_no_folder_is_named(tmp_path):
  present = [make_stats(0), make_stats(1, 'b')]
  write(tmp_path, present[0])
  assert worker_records.gather(str(tmp_path), present) == (present, [1])
  assert worker_records.gather(None, present) == (present, [0, 1])


@pytest.mark.parametrize(
  'fields', [{}, {'sessions': [[1]]}, {'rows': []}, {'pushes': 'many'}]
)
def test_what_is_damaged_or_of_another_version_is_left_out(tmp_path, fields):
  write(tmp_path, make_stats())
  other = make_stats(1, 'b').to_fields() if fields else {}
  make_writer(tmp_path, make_stats(1, 'b')).write(
    'sample', state='training', **other | fields
  )
  assert [s.worker for s in worker_records.read(str(tmp_path))] == [0]


@pytest.mark.slow
def test_in_a_store_each_life_has_an_object(store, tmp_path):
  logdir = f'{store.url}/{tmp_path.name}'
  first, second = make_stats(1, 'a'), make_stats(1, 'b')
  writer = make_writer(logdir, first)
  writer.write('sample', state='starting', examples=0)
  assert store.requests == []  # The chief may yet move an earlier run aside.
  for state in 'training', 'ending':
    writer.write('sample', state=state, **first.to_fields())
  num_requests = len(store.requests)
  writer.write('means', step=3, epoch=1, steps=3, metrics={})
  assert len(store.requests) == num_requests  # Of no use to a report.
  write(logdir, second)
  first.has_ended = True
  found = worker_records.read(logdir)
  assert sorted(found, key=lambda stats: stats.life) == [first, second]
