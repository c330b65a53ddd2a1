"""What a worker says of its steps, from one sample to the next."""

import types

import pytest

from distmnist.logdir import report
from distmnist.training.telemetry import worker_metrics


class Stalls:
  def __init__(self):
    self.waited = 0.0

  def secs(self):
    return self.waited


@pytest.fixture
def worker(monkeypatch):
  now = types.SimpleNamespace(monotonic=lambda: worker.time)
  monkeypatch.setattr(worker_metrics, 'time', now)
  worker = types.SimpleNamespace(
    time=100.0,
    stats=report.WorkerStats(1),
    progress=types.SimpleNamespace(
      final_step=None,
      final_loss=None,
      last_values={},
      last_step=500,
      unit='images',
    ),
    stalls=Stalls(),
  )
  worker.metrics = worker_metrics.WorkerMetrics(
    worker.stats,
    worker.progress,
    worker.stalls,
    10,
  )
  return worker


def test_before_its_first_step_it_starts(worker):
  found = worker.metrics.collect()
  assert (found['state'], found['step']) == ('starting', None)
  assert found['examples_per_sec'] is None
  assert found['last_step'] == 500


def test_a_worker_that_finds_nothing_to_do_knows_where_the_run_is(worker):
  worker.stats.sessions.append([600, 600])
  found = worker.metrics.collect()
  assert (found['step'], found['examples_per_sec']) == (600, None)


def test_a_sample_has_the_sums_of_its_life_and_the_rates_since_the_last(
  worker,
):
  worker.metrics.collect()
  worker.progress.final_step = 40
  worker.progress.last_values = {'global_step': 40, 'loss': 1, 'accuracy': 0.5}
  worker.stats.examples, worker.time = 500, 102.0
  worker.stats.staleness.update([0, 0, 3])
  found = worker.metrics.collect()
  assert (found['state'], found['step']) == ('training', 40)
  assert found['examples_per_sec'] == 250
  assert found['metrics'] == {'accuracy': 0.5}
  assert (found['staleness'], found['staleness_mean']) == ({0: 2, 3: 1}, 1.0)
  line = found | {'task': 'worker 1', 'life': ''}
  assert report.WorkerStats.from_line(line) == worker.stats
  worker.stats.staleness.update([3])
  worker.time = 104.0
  found = worker.metrics.collect()
  assert (found['staleness'], found['staleness_mean']) == ({0: 2, 3: 2}, 3.0)
  assert found['examples_per_sec'] == 0.0


def test_a_long_step_is_a_wait_until_the_loop_has_ended(worker):
  worker.progress.final_step = 1
  worker.stalls.waited = 10.5
  assert worker.metrics.collect()['state'] == 'waiting'
  worker.stats.has_ended = True
  assert worker.metrics.collect()['state'] == 'ending'
