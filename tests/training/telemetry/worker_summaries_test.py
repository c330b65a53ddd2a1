"""worker_summaries: what TensorBoard shows of a worker's steps."""

import collections

import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import report
from distmnist.training.telemetry.worker_summaries import WorkerSummaries


class Session:
  """Reads a learning rate of 0.5."""

  def run(self, tensor):
    assert tensor == 'rate'
    return 0.5


def read(folder):
  """Returns [(step, {tag: value})] of the summaries in a folder."""
  [path] = folder.iterdir()
  found = collections.defaultdict(dict)
  for event in tf.train.summary_iterator(str(path)):
    for value in event.summary.value:
      kind = value.WhichOneof('value')
      found[event.step][value.tag] = (
        value.simple_value if kind == 'simple_value' else value.histo.num
      )
  return sorted(found.items())


def make_stats(local_steps, staleness):
  stats = report.WorkerStats(1)
  stats.batch_size = 10
  stats.local_steps, stats.examples = local_steps, 10 * local_steps
  stats.staleness.update(staleness)
  return stats


def test_a_summary_is_due_every_so_many_local_steps(tmp_path):
  folder = tmp_path / 'worker_1'
  summaries = WorkerSummaries(str(folder), 3, 'rate', ['accuracy'])
  summaries.begin()
  assert summaries.is_due(0)
  values = {'global_step': 7, 'loss': 2.0, 'accuracy': 0.25, 'more': 1}
  summaries.write(values, make_stats(1, [0]), Session(), now=100.0)
  assert not summaries.is_due(2) and summaries.is_due(3)
  values |= {'global_step': 12, 'loss': 1.0}
  summaries.write(values, make_stats(4, [0, 1, 3]), Session(), now=102.0)
  summaries.close(make_stats(5, [0, 1, 3, 5]), 13)
  [first, second, last] = read(folder)
  assert first == (
    7,
    {
      'loss': 2.0,
      'accuracy': 0.25,
      'learning_rate': 0.5,
      'local_steps': 1,
      'examples': 10,
      'bytes_pulled': 0,
      'bytes_pushed': 0,
      'staleness': 1,
      'staleness_mean': 0,
    },
  )
  # 30 images in 2 s; of the staleness only what has come since.
  assert second[0] == 12
  assert second[1]['examples_per_sec'] == 15
  assert second[1]['staleness_mean'] == pytest.approx(2)
  assert last == (13, {'staleness': 1, 'staleness_mean': 5})


def test_a_tag_of_the_scripts_own_is_its_own(tmp_path):
  summaries = WorkerSummaries(str(tmp_path), 1, 'rate')
  summaries.begin()
  value = tf.Summary.Value(tag='loss', simple_value=9.0)
  own = tf.Summary(value=[value]).SerializeToString()
  stats = make_stats(1, {})
  values = {'global_step': 1, 'loss': 2.0}
  summaries.write(values, stats, Session(), now=100.0, own=own)
  [path] = tmp_path.iterdir()
  found = [
    (value.tag, value.simple_value)
    for event in tf.train.summary_iterator(str(path))
    for value in event.summary.value
  ]
  assert [v for tag, v in found if tag == 'loss'] == [9.0]
  assert ('learning_rate', 0.5) in found


def test_rows_of_tables_are_of_the_step(tmp_path):
  summaries = WorkerSummaries(str(tmp_path), 1, 'rate')
  summaries.begin()
  rows = {'rows/ids': 8, 'rows/different': 2, 'rows/of_ps_0': 2}
  values = {'global_step': 7, 'loss': 2.0, **rows}
  summaries.write(values, make_stats(1, []), Session(), now=100.0)
  summaries.close(make_stats(1, []), 7)
  [(_, found)] = read(tmp_path)
  share = found.pop('rows/share_different')
  assert share == 0.25
  assert {n: x for n, x in found.items() if n.startswith('rows/')} == rows


def test_without_a_folder_there_is_none():
  summaries = WorkerSummaries(None, 1, 'rate')
  summaries.begin()
  assert not summaries.is_due(0)
  summaries.close(make_stats(1, [0]), 1)
