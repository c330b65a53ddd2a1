"""worker_records: what each process of a run has done, from one to the next."""

import collections
import os

from distmnist.common import layout
from distmnist.logdir import report, worker_records
from distmnist.watching import own_metrics


def make_stats(worker=0, life='a', local_steps=3, start=1.0):
  return report.WorkerStats(
    worker,
    local_steps,
    images=10 * local_steps,
    staleness=collections.Counter({0: local_steps}),
    batch_size=10,
    life=life,
    start=start,
    sessions=[[0, local_steps]],
  )


def make_sums(logdir, stats):
  return worker_records.Sums(
    stats, logdir and str(logdir), own_metrics.OwnMetrics()
  )


def test_a_life_is_there_from_its_first_step_on(tmp_path):
  stats = make_stats(local_steps=1)
  sums = make_sums(tmp_path, stats)
  sums.write_if_due()
  sums._last_write.result()
  assert worker_records.read(str(tmp_path)) == [stats]
  # The next write is due in some seconds: a kill loses that much.
  stats.local_steps = 2
  sums.write_if_due()
  sums._last_write.result()
  [found] = worker_records.read(str(tmp_path))
  assert (found.local_steps, found.has_ended) == (1, False)
  sums._next_write = 0.0
  sums.write_if_due()
  sums._last_write.result()
  assert worker_records.read(str(tmp_path)) == [stats]
  sums.close()


def test_at_its_end_all_is_there(tmp_path):
  stats = make_stats()
  sums = make_sums(tmp_path, stats)
  sums.end()
  [found] = worker_records.read(str(tmp_path))
  assert found == stats
  assert found.has_ended
  # What the end of another sums added is written, too.
  stats.bytes_sent = 7
  sums.close()
  assert worker_records.read(str(tmp_path)) == [stats]


def test_a_loop_that_failed_leaves_what_it_did(tmp_path):
  stats = make_stats()
  make_sums(tmp_path, stats).close()
  [found] = worker_records.read(str(tmp_path))
  assert (found.local_steps, found.has_ended) == (3, False)


def test_who_made_no_step_or_has_no_folder_writes_nothing(tmp_path):
  make_sums(tmp_path, make_stats(local_steps=0)).end()
  sums = make_sums(None, make_stats())
  sums.write_if_due()
  sums.end()
  assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path, logged):
  layout.make_own_dir(str(tmp_path))
  (tmp_path / 'distmnist-files' / 'lives').write_text('a file in its place')
  stats = make_stats()
  sums = make_sums(tmp_path, stats)
  sums.write_if_due()
  sums.end()
  [line] = logged
  assert line == (
    f'{tmp_path}/distmnist-files/lives/worker_0_a.json cannot be written: File '
    'exists; should this process be killed, the report will lack what it did'
  )
  # It says by message what it did; nothing is known of one before it.
  assert worker_records.gather(str(tmp_path), [stats]) == ([stats], [0])


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
  for stats in [*old, *present]:
    make_sums(tmp_path, stats).end()
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
  make_sums(tmp_path, before).end()
  found, unknown = worker_records.gather(str(tmp_path), [make_stats(0, 'b', 0)])
  assert (found, unknown) == ([before], [])


def test_who_shares_no_folder_is_named(tmp_path):
  present = [make_stats(0), make_stats(1)]
  make_sums(tmp_path, present[0]).end()
  assert worker_records.gather(str(tmp_path), present) == (present, [1])
  assert worker_records.gather(None, present) == (present, [0, 1])


def test_what_is_damaged_or_of_another_version_is_left_out(tmp_path):
  make_sums(tmp_path, make_stats()).end()
  folder = tmp_path / 'distmnist-files' / 'lives'
  for i, text in enumerate(['', '[]', '{}', '{"staleness": {}, "new": 1}']):
    (folder / f'worker_1_{i}.json').write_text(text)
  assert [s.worker for s in worker_records.read(str(tmp_path))] == [0]


def test_what_is_kept_is_what_a_line_of_metrics_says(tmp_path):
  stats = make_stats()
  sums = make_sums(tmp_path, stats)
  kept = sums.keep()
  stats.local_steps += 1
  stats.sessions[-1][1] += 1
  assert worker_records.read(str(tmp_path)) == [kept]
  assert (kept.local_steps, kept.sessions) == (3, [[0, 3]])
  sums.close()
  assert worker_records.read(str(tmp_path)) == [stats]
