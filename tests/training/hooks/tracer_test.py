"""Timelines: of the steps that were asked for, and no other."""

import json
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import console
from distmnist.training.hooks import tracer
from tests.support import in_process


class Steps:
  """Stands for fused_steps.Steps, with `num_steps` in each session.run."""

  def __init__(self, num_steps):
    self.done = [{}] * num_steps

  def chosen_tensors(self):
    return self.done


@pytest.fixture
def train(tf_session, tmp_path):
  """Returns train(wanted, num_runs, steps_per_run=1) -> (lines, files)."""

  def train(wanted, num_runs, steps_per_run=1, folder=tmp_path / 'traces'):
    lines = []
    console.print_logs(lines.append)
    task = in_process.make_task(cluster.Cluster())
    trace = tracer.Tracer(wanted, Steps(steps_per_run), str(folder), task)
    square = tf.random.uniform([2, 2])  # No constant, which would be folded.
    product = tf.matmul(square, square)
    for _ in range(num_runs):
      args = trace.choose_args()
      metadata = tf.RunMetadata()
      tf_session.run(
        product, options=args and args.options, run_metadata=metadata
      )
      trace.write(types.SimpleNamespace(run_metadata=metadata))
    trace.end()
    files = sorted(folder.glob('*')) if folder.is_dir() else []
    return lines, files

  return train


def test_a_wanted_step_is_a_file_of_events(train):
  lines, [path] = train([2], 3)
  assert path.name == 'trace_2.json'
  events = json.loads(path.read_text())['traceEvents']
  (matmul,) = [event for event in events if event['args'].get('op') == 'MatMul']
  assert matmul['cat'] == 'compute'
  assert matmul['args'].pop('device') in ('CPU:0', 'GPU:0')
  assert matmul['args'] == {'op': 'MatMul', 'step': 'worker 0, local step 2'}
  assert lines == [f'local step 2: trace in {path}']


def test_a_run_of_several_steps_is_one_file_by_its_last(train):
  _, files = train([2, 3, 8], 3, steps_per_run=3)
  assert [path.name for path in files] == ['trace_3.json', 'trace_9.json']


def test_a_step_that_never_came_is_said(train):
  lines, files = train([1, 7, 9], 2)
  assert [path.name for path in files] == ['trace_1.json']
  assert lines[-1] == 'no trace of local step 7, 9: this worker made 2'


def test_a_folder_that_cannot_be_written_ends_no_training(train, tmp_path):
  (tmp_path / 'file').write_text('')
  lines, files = train([1], 1, folder=tmp_path / 'file' / 'traces')
  assert files == []
  assert lines == [
    f'cannot write {tmp_path}/file/traces/trace_1.json: Not a directory'
  ]
