"""summaries: what TensorBoard reads, and a disk that takes no more."""

import resource
import time

import pytest
import tensorflow.compat.v1 as tf
from tensorboard.backend.event_processing import event_accumulator

from distmnist.training.telemetry import summaries


def read(folder):
  """Returns the events in a folder, the version of each file left out."""
  events = []
  for path in sorted(folder.glob('events.out.tfevents.*')):
    version, *found = tf.train.summary_iterator(str(path))
    assert version.file_version == 'brain.Event:2'
    events += found
  return events


@pytest.fixture
def write(tmp_path):
  def write(counts):
    writer = summaries.Writer(str(tmp_path))
    writer.write_histogram('staleness', counts, 7)
    writer.close()
    (event,) = read(tmp_path)
    (value,) = event.summary.value
    assert (value.tag, event.step) == ('staleness', 7)
    return value.histo

  return write


def test_small_numbers_have_a_bucket_each(write):
  histogram = write({-1: 2, 1: 3, 2: 4})
  assert list(histogram.bucket_limit) == [-1.5, -0.5, 0.5, 1.5, 2.5]
  assert list(histogram.bucket) == [0, 2, 0, 3, 4]
  assert (histogram.min, histogram.max) == (-1, 2)
  assert (histogram.num, histogram.sum, histogram.sum_squares) == (9, 9, 21)


def test_one_that_slept_a_night_costs_no_more(write):
  histogram = write({0: 5, 999: 1, 10**8: 1})
  assert len(histogram.bucket) == len(histogram.bucket_limit) < 1200
  assert sum(histogram.bucket) == 7
  assert histogram.bucket[-1] == 1
  assert histogram.bucket_limit[-1] >= 10**8
  # Whole within what TensorBoard takes, and well below 160 MB.
  value = tf.Summary.Value(tag='staleness', histo=histogram)
  assert len(value.SerializeToString()) < 30_000


def test_numbers_that_are_all_large(write):
  histogram = write({10**7: 1, 10**7 + 3: 2})
  assert list(histogram.bucket)[0] == 0
  assert sum(histogram.bucket) == 3


def test_events_come_back_and_a_folder_that_is_removed_is_made_again(
  tmp_path, logged
):
  folder = tmp_path / 'worker_0'
  writer = summaries.Writer(str(folder))
  writer.write_scalars({'loss': 0.5, 'images': 20}, 1)
  (event,) = read(folder)
  values = {v.tag: v.simple_value for v in event.summary.value}
  assert (event.step, values) == (1, {'loss': 0.5, 'images': 20})
  assert abs(event.wall_time - time.time()) < 600
  for path in folder.iterdir():
    path.unlink()
  folder.rmdir()
  writer.write_scalars({'loss': 0.25}, 2)
  writer.close()
  assert [event.step for event in read(folder)] == [2]
  assert logged == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, logged):
  (tmp_path / 'worker_0').write_text('a file')
  writer = summaries.Writer(f'{tmp_path}/worker_0')
  for step in range(3):
    writer.write_scalars({'loss': 0.5}, step)
  writer.close()
  assert logged == [
    f'cannot write summaries to {tmp_path}/worker_0: File exists; the training'
    ' goes on without, until they can be written again'
  ]


def test_a_disk_that_is_full_for_a_while_is_one_line(
  tmp_path, logged, monkeypatch
):
  monkeypatch.setattr(summaries, '_RETRY_SECS', 0)
  writer = summaries.Writer(str(tmp_path))
  writer.write_scalars({'loss': 0.5}, 0)
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  # Python ignores SIGXFSZ: a write beyond it fails, as on a full disk.
  resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
  try:
    for step in range(1, 20):
      writer.write_scalars({'loss': 0.5}, step)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  for step in (20, 21):
    writer.write_scalars({'loss': 0.5}, step)
  writer.close()
  (line,) = logged
  assert line.startswith(f'cannot write summaries to {tmp_path}: ')
  # Files without a whole event would be one for each failed write.
  assert len(list(tmp_path.iterdir())) == 2
  assert [event.step for event in read(tmp_path)] == [0, 20, 21]


def test_the_graph_is_written(tmp_path, logged):
  with tf.Graph().as_default():
    tf.constant(1, name='one')
    summaries.write_graph(str(tmp_path))
  (event,) = read(tmp_path)
  graph = tf.GraphDef.FromString(event.graph_def)
  assert [node.name for node in graph.node] == ['one']
  assert logged == []


def read_steps(folder):
  """Returns {tag: list of steps} as TensorBoard shows a run."""
  run = event_accumulator.EventAccumulator(str(folder)).Reload()
  return {
    tag: [event.step for event in run.Scalars(tag)]
    for tag in run.Tags()['scalars']
  }


def test_what_comes_after_the_step_that_is_gone_back_to_is_forgotten(tmp_path):
  leader, other = (summaries.Writer(str(tmp_path)) for _ in range(2))
  for first, last in (0, 50), (30, 60):  # A ps is lost at step 50.
    leader.begin_session(first)
    other.begin_session()
    for step in range(first + 10, last + 1, 10):
      leader.write_scalars({'loss': 1}, step)
      other.write_scalars({'rows': 1}, step)
  leader.close()
  other.close()
  assert read_steps(tmp_path) == {
    'loss': [10, 20, 30, 40, 50, 60],
    'rows': [10, 20, 30, 40, 50, 60],
  }
  # Another process, which begins with the checkpoint of step 40.
  again = summaries.Writer(str(tmp_path))
  again.begin_session(40)
  again.write_scalars({'loss': 2}, 41)
  again.close()
  assert read_steps(tmp_path)['loss'] == [10, 20, 30, 40, 41]
