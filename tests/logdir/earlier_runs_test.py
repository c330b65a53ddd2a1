"""What a run has left, moved into a folder of its log directory."""

import os
import pathlib
import shutil

from distmnist.logdir import earlier_runs


def test_all_that_a_run_has_left_is_moved(tmp_path):
  """So that `evaluate` and `status` still know the run."""
  moved = [
    *('best', 'model.ckpt-9.index', 'model.keras', 'problem.py'),
    *('report.json', 'train.flags', 'metrics/worker_0', 'metrics/graph'),
    *('distmnist-files/history', 'distmnist-files/train.data'),
  ]
  stays = [
    *('distmnist-files/launcher.json', 'distmnist-files/owner.json'),
    *('logs', 'metrics/launcher', 'train.flags.txt'),
  ]
  for name in [*moved, *stays]:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  target = earlier_runs.move(str(tmp_path))

  def list_files(folder):
    found = [x for x in folder.rglob('*') if x.is_file()]
    return {str(x.relative_to(folder)) for x in found}

  assert list_files(pathlib.Path(target)) == {*moved}
  shutil.rmtree(target)
  assert list_files(tmp_path) == {*stays}
  assert earlier_runs.move(str(tmp_path)) is None


def test_a_checkpoint_is_found_where_it_was_moved(tmp_path):
  logdir, target = str(tmp_path), str(tmp_path / 'earlier_1')

  def find(path):
    return earlier_runs.find_moved(os.path.join(logdir, path), logdir, target)

  assert find('model.ckpt-9') == f'{target}/model.ckpt-9'
  assert find('./best/model.ckpt-9') == f'{target}/best/model.ckpt-9'
  for path in ('passed_over_1/model.ckpt-9', '../model.ckpt-9'):
    assert find(path) == os.path.join(logdir, path)


def test_what_this_launch_has_begun_stays(tmp_path, monkeypatch):
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'ours')

  def write(name, launch):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'{{"launch": "{launch}"}}\n{{}}\n')

  ours = [
    'metrics/ps_0/metrics.jsonl',
    'distmnist-files/history/worker_1_b.jsonl',
  ]
  for name in ours:
    write(name, 'ours')
  assert earlier_runs.move(str(tmp_path)) is None  # No chief has been here.
  theirs = [
    'metrics/worker_1/metrics.jsonl',
    'distmnist-files/history/worker_1_a.jsonl',
  ]
  for name in theirs:
    write(name, 'theirs')
  (tmp_path / 'train.flags').write_text('--model=mlp')
  target = earlier_runs.move(str(tmp_path))
  there = [p for p in (tmp_path / target).rglob('*') if p.is_file()]
  assert sorted(str(p.relative_to(target)) for p in there) == sorted(
    [*theirs, 'train.flags']
  )
  for name in ours:
    assert (tmp_path / name).exists()
