"""What a worker counts of its steps, and the line that it prints of them."""

import itertools
import re
import types

import pytest

from distmnist.logdir import report
from distmnist.training.batches import batch_table
from distmnist.training.hooks import progress
from distmnist.training.telemetry import worker_summaries

SOURCE = types.SimpleNamespace(
  dealing=batch_table.Dealing(2, 100, 1, 50, False, pushes_per_step=2),
  images_per_epoch=1000,
  count_images=lambda step: 200 * step,
)


class Console:
  """Stands for console.Console; a line is due when the test says so."""

  def __init__(self):
    self.lines = []
    self.due = False

  def is_due(self):
    return self.due

  def progress(self, text, part):
    self.lines.append((text, part))


@pytest.fixture
def worker():
  """A Progress; run(*steps), each (global_step, staleness, bytes_pushed)."""
  console, steps = Console(), types.SimpleNamespace(done=[])
  stats, means = report.WorkerStats(1), []
  shown = progress.Progress(
    stats,
    steps,
    {'bytes_pulled': 40},
    SOURCE,
    console,
    worker_summaries.WorkerSummaries(None, 100, None),
    metrics=types.SimpleNamespace(
      write=lambda kind, **fields: means.append(fields)
    ),
  )
  shown.begin()

  def run(*done):
    steps.done = [
      {'global_step': step, 'loss': 0.5, 'staleness': s, 'bytes_pushed': pushed}
      for step, s, pushed in done
    ]
    shown.count_run(None)

  return types.SimpleNamespace(
    shown=shown, stats=stats, console=console, run=run, means=means
  )


def test_each_step_is_counted(worker):
  worker.run((1, 0, 40))
  worker.run((3, 1, 40), (4, -1, 8))
  stats = worker.stats
  assert (stats.local_steps, stats.examples, stats.pushes) == (3, 300, 2)
  assert (stats.bytes_pulled, stats.bytes_pushed) == (120, 88)
  # A step that pushed nothing, or rows alone, has no staleness.
  assert dict(stats.staleness) == {0: 1, 1: 1}
  # The first run is where the clock starts.
  assert stats.timed_steps == 2
  assert worker.shown.final_step == 4


def test_rows_of_tables_are_added_up(worker):
  worker.shown._constants |= {'rows/ids': 5, 'rows/of_ps_0': 2}
  worker.run((1, 0, 40), (2, 0, 40))
  assert worker.stats.rows == {'rows/ids': 10, 'rows/of_ps_0': 4}


def test_a_line_has_step_epoch_and_loss(worker):
  worker.run((1, 0, 40))
  assert worker.console.lines == []
  worker.console.due = True
  worker.run((5, 0, 40))
  worker.run((10, 0, 40))
  _, (text, part) = worker.console.lines
  assert text.startswith('step 10/50  epoch 2.00  loss 0.5000  ')
  assert text.endswith(' images/s')
  assert part == 0.2


def test_within_a_round_a_line_has_the_local_steps(worker, monkeypatch):
  dealing = SOURCE.dealing._replace(batches_per_push=3)
  monkeypatch.setattr(SOURCE, 'dealing', dealing)
  worker.console.due = True
  for step in (0, 0, 1, 1):
    worker.run((step, 0, 40))
  found = [re.search(r'(\d+) local', text) for text, _ in worker.console.lines]
  assert [int(m[1]) for m in found] == [1, 2, 3, 4]


@pytest.fixture
def clock(monkeypatch):
  """A clock that goes on by 4 s from run to run."""
  times = itertools.count(100.0, 4.0)
  stands_for = types.SimpleNamespace(monotonic=lambda: next(times))
  monkeypatch.setattr(progress, 'time', stands_for)


def read_rates(console):
  """Returns the ms/step and the images/s of each line, or None."""
  rate = re.compile(r'([\d.]+) ms/step  ([\d,]+) images/s')
  found = [rate.search(text) for text, _ in console.lines]
  return [m and (float(m[1]), int(m[2].replace(',', ''))) for m in found]


@pytest.mark.usefixtures('clock')
def test_a_rate_is_of_all_the_time_that_a_global_step_took(worker):
  worker.run((1, 0, 40))
  worker.console.due = True
  # Rounds of several local steps, each with several lines.
  for step in (1, 2, 2, 2, 2, 3, 3, 4):
    worker.run((step, 0, 40))
  *_, third, _, fourth = read_rates(worker.console)
  # 200 images in 16 s and in 8 s.
  assert (third, fourth) == ((4000, 12), (4000, 25))


@pytest.mark.parametrize('last_step', [50, batch_table.NO_LAST_STEP])
@pytest.mark.usefixtures('clock')
def test_no_rate_is_of_the_first_steps(worker, monkeypatch, last_step):
  dealing = SOURCE.dealing._replace(last_step=last_step)
  monkeypatch.setattr(SOURCE, 'dealing', dealing)
  worker.console.due = True
  # The second line is of no new global step, the third of the first one.
  for step in (1, 1, 2, 3):
    worker.run((step, 0, 40))
  assert read_rates(worker.console) == [None, None, None, (4000, 50)]


@pytest.mark.usefixtures('clock')
def test_the_time_left_is_at_the_pace_so_far(worker):
  worker.run((1, 0, 40))
  worker.run((2, 0, 40))
  worker.console.due = True
  worker.run((3, 0, 40))
  for step in 7, 11, 50:
    worker.run((step, 0, 40))
  # Only the steps after the first line are counted.
  assert [
    [word for word in text.split('  ') if 'left' in word]
    for text, _ in worker.console.lines
  ] == [[], ['43 s left'], ['39 s left'], []]


def test_means_are_of_whole_epochs(worker):
  # Of 5 steps; what others made beyond the end, or before, begins none.
  for step in (0, 1, 5, 6, 10, 50, 52):
    worker.run((step, 0, 40))
  worker.shown.end()
  assert [(x['step'], x['epoch'], x['steps']) for x in worker.means] == [
    *((0, 1, 1), (1, 1, 1), (5, 1, 1), (6, 2, 1), (10, 2, 1)),
    *((50, 10, 1), (52, 10, 1)),
  ]
  assert worker.means[0]['metrics'] == {'loss': 0.5}


def test_the_last_line_is_of_the_last_step_and_comes_once(worker):
  worker.run((1, 0, 40))
  # Other workers may have gone beyond the end.
  worker.run((52, 0, 40))
  worker.shown.end()
  [(text, part)] = worker.console.lines
  assert text.startswith('step 50/50  epoch 10.40  ')
  assert part > 1
  worker.console.due = True
  worker.run((53, 0, 40))
  worker.shown.end()
  assert len(worker.console.lines) == 2


def test_where_only_time_ends_a_run_no_last_step_is_shown(worker, monkeypatch):
  dealing = SOURCE.dealing._replace(last_step=batch_table.NO_LAST_STEP)
  monkeypatch.setattr(SOURCE, 'dealing', dealing)
  assert worker.shown.last_step is None
  worker.run((1, 0, 40))
  worker.console.due = True
  worker.run((550, 0, 40))
  [(text, part)] = worker.console.lines
  assert text.startswith('step 550  epoch 110.00  ') and part is None


def test_the_images_of_all_are_those_of_the_updates_after_the_first_run(worker):
  worker.run((1, 0, 40))
  assert worker.stats.timed_examples_of_all == 0
  worker.run((11, 0, 40))
  assert worker.stats.timed_examples_of_all == 10 * 200
  # Back to a checkpoint of step 5; what is done again is work as well.
  worker.run((6, 0, 40))
  worker.run((12, 0, 40))
  assert worker.stats.timed_examples_of_all == (10 + 6) * 200
