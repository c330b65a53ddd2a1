"""Each task keeps its metrics; what no summary has becomes a curve."""

import json
import os
import queue
import signal
import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import layout, owner, owner_file
from distmnist.lifecycle import task as task_lib
from distmnist.training.telemetry import task_metrics
from distmnist.watching import metrics_file, stop_file
from tests.support import in_process


def read_curves(folder):
  """Returns [(step, {tag: value})] of the summaries in a folder."""
  return [
    (event.step, {v.tag: v.simple_value for v in event.summary.value})
    for path in sorted(folder.glob('events.out.tfevents.*'))
    for event in tf.train.summary_iterator(str(path))
    if event.summary.value
  ]


@pytest.mark.slow
def test_a_ps_is_a_run_in_tensorboard(make_cluster, tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  shared = make_cluster(1, 2)
  task = in_process.make_task(shared.ps(0), shared.ps_servers[0])
  task.watchdog.life = 'a'
  with task_metrics.kept(task):
    pass
  lines = list(metrics_file.iterate(str(tmp_path)))
  assert [line['kind'] for line in lines] == [
    *('start', 'sample', 'sample', 'end')
  ]
  assert lines[1]['state'] == 'serving' and lines[1]['waiting'] == []
  (step, curves), _ = read_curves(tmp_path / 'metrics' / 'ps_0')
  assert step == 0
  assert curves['rss_bytes'] == lines[1]['rss_bytes']
  assert {'sent_bytes_per_sec', 'workers_waiting'} <= curves.keys()


def test_evaluations_are_curves_over_the_step(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  task = task_lib.Task(
    cluster_lib.Cluster(job_name='evaluator'), in_process.NoStop()
  )
  task.stop.is_requested = True
  with task_metrics.kept(task):
    task.metrics.write(
      'evaluation', split='test', step=40, metrics={'accuracy': 0.5}
    )
  assert read_curves(tmp_path / 'metrics' / 'evaluator_0') == [
    (40, {'accuracy': 0.5})
  ]
  assert list(metrics_file.iterate(str(tmp_path)))[-1]['text'] == 'stopped'


def test_the_last_evaluation_of_the_chief_has_a_run_of_its_own(tmp_path):
  curves = task_metrics.Curves(str(tmp_path))
  line = {'kind': 'evaluation', 'task': 'worker 0', 'step': 7, 'time': 1.0}
  curves(line | {'split': 'validation', 'metrics': {'accuracy': 0.25}})
  curves(
    line | {'split': 'test', 'metrics': {'accuracy': 0.75}, 'is_final': True}
  )
  curves.close()
  assert os.listdir(tmp_path / 'metrics') == ['test']
  assert read_curves(tmp_path / 'metrics' / 'test') == [(7, {'accuracy': 0.75})]


def test_the_seconds_of_a_ps_begin_anew_with_its_file(tmp_path):
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a')
  path = tmp_path / 'metrics' / 'ps_0' / metrics_file.NAME
  curves = task_metrics.Curves(str(tmp_path))

  def write(begun, now):
    ps.write('start')
    line = {'kind': 'start', 'task': 'ps 0', 'life': 'a', 'time': begun}
    path.write_text(json.dumps(line) + '\n')
    curves({'kind': 'sample', 'task': 'ps 0', 'time': now, 'rss_bytes': 1})

  write(100.0, 5000.0)
  path.rename(tmp_path / 'aside')
  write(4990.0, 5002.0)
  curves.close()
  found = [step for step, _ in read_curves(tmp_path / 'metrics' / 'ps_0')]
  assert found == [4900, 12]


def test_nothing_is_written_where_the_folder_is_not_shared(tmp_path):
  curves = task_metrics.Curves(str(tmp_path / 'run'))
  curves({'kind': 'sample', 'task': 'ps 0', 'time': 1.0, 'rss_bytes': 1})
  curves.close()
  assert not list(tmp_path.iterdir())


def test_a_request_to_stop_is_kept_until_its_launcher_is_known_to_be_gone(
  tmp_path, set_flags, monkeypatch
):
  monkeypatch.setattr(stop_file, '_LOOK_SECS', 0.002)
  set_flags(f'--logdir={tmp_path}')
  layout.make_own_dir(str(tmp_path))
  launcher = tmp_path / 'distmnist-files' / 'launcher.json.00000001'
  me = owner_file.describe_self() | {'machine': 'another', 'pid': 1}
  launcher.write_text(json.dumps(me))
  looks, requests = threading.Semaphore(0), queue.Queue()
  has_launcher = owner.has_launcher

  def look(logdir):
    looks.release()
    return has_launcher(logdir)

  monkeypatch.setattr(owner, 'has_launcher', look)
  task = task_lib.Task(
    cluster_lib.Cluster(job_name='evaluator'), in_process.NoStop()
  )
  task.stop.request = lambda *args, **kwargs: requests.put(args)
  with task_metrics.kept(task):
    stop_file.write(str(tmp_path))
    for _ in range(3):
      assert looks.acquire(timeout=60)
    assert requests.empty()
    # Nobody has touched the launcher's file for a minute.
    os.utime(launcher, (time.time() - 60,) * 2)
    assert requests.get(timeout=60) == (signal.SIGINT,)
    # Asked once more.
    stop_file.write(str(tmp_path))
    assert requests.get(timeout=60) == (signal.SIGINT,)
