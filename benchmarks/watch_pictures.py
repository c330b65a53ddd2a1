"""A run with kills, in every view of it: the pictures of the docs.

  python benchmarks/watch_pictures.py OUT [--workers=7] [--rule=async_sgd]

2 ps and the workers train on this machine in a tmux terminal, with an
evaluator. Once they have traced a step, a worker is killed; once it is back, a
ps; once all train again, the terminal is captured and the run is asked to stop.
OUT then has live_table.txt; report.png and tensorboard.png, as Chromium draws
report.html and TensorBoard; and timeline.png, the traced step of all tasks.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from lib import processes
from matplotlib import pyplot

from distmnist.common import ports
from distmnist.watching import html_report, timeline, watched_run

LIMIT_SECS = 400
TRACED = 60
COLOURS = {'compute': '#2ca02c', 'pull': '#1f77b4', 'push': '#ff7f0e'}
COLOURS['wait'] = '#bbbbbb'


def make_command(logdir, num_workers, rule):
  return [
    *(sys.executable, '-m', 'distmnist.launch', '--num_ps=2', '--evaluator'),
    *(f'--num_workers={num_workers}', '--max_restarts=5', '--', '--model=cnn'),
    *(f'--strategy={rule}', '--dataset=synthetic', '--batch_size=32'),
    *('--train_steps=1000000', f'--trace_steps={TRACED}', '--save_secs=10'),
    *('--learning_rate=0.01', '--log_secs=1', f'--logdir={logdir}'),
  ]


def wait_until(run, is_so):
  """Waits until is_so({task: run_state.Row})."""
  deadline = time.monotonic() + LIMIT_SECS
  while not is_so({row.task: row for row in run.look().make_rows()}):
    if time.monotonic() > deadline:
      raise processes.ProcessError(f'it takes more than {LIMIT_SECS} s')
    time.sleep(0.2)


def kill(run, task):
  """Kills a task, and waits until it works again."""
  handle = os.pidfd_open(run.state.tasks[task].start['pid'])
  signal.pidfd_send_signal(handle, signal.SIGKILL)
  os.close(handle)
  at_work = 'serving' if task.startswith('ps') else 'training'
  wait_until(
    run, lambda rows: (rows[task].restarts, rows[task].state) == (1, at_work)
  )


def follow(run, logdir, capture, num_workers):
  """Makes the kills; returns the terminal's text before the end (str)."""
  workers = [f'worker {i}' for i in range(num_workers)]
  traces = [
    pathlib.Path(logdir, name.replace(' ', '_'), f'trace_{TRACED}.json')
    for name in workers
  ]
  wait_until(run, lambda rows: all(path.exists() for path in traces))
  kill(run, 'worker 1')
  kill(run, 'ps 1')
  before = run.state.step

  def all_train(rows):
    step = run.state.step or 0
    return step > before and all(rows[w].state == 'training' for w in workers)

  wait_until(run, all_train)
  screen = capture()
  subprocess.run(
    [sys.executable, '-m', 'distmnist.stop', f'--logdir={logdir}'],
    cwd=processes.REPO,
    check=True,
  )
  return screen


def show_in_tmux(logdir, num_workers, rule):
  """Runs the launch in a terminal; returns what `follow` captured (str)."""
  at = ['tmux', '-L', f'watch_{os.getpid()}', '-f', '/dev/null']
  shell = shlex.join(make_command(logdir, num_workers, rule))
  size = ['-x', '80', '-y', '40']
  subprocess.run(
    [*at, 'new-session', '-d', *size, f'{shell}; cat'],
    cwd=processes.REPO,
    check=True,
  )

  def capture():
    done = subprocess.run(
      [*at, 'capture-pane', '-p'], capture_output=True, text=True
    )
    return done.stdout.rstrip() + '\n'

  try:
    run = watched_run.WatchedRun(str(logdir))
    screen = follow(run, logdir, capture, num_workers)
    wait_until(run, lambda rows: pathlib.Path(logdir, timeline.NAME).exists())
    return screen
  finally:
    subprocess.run([*at, 'kill-server'], capture_output=True)


def draw_timeline(path, out):
  """Draws what all tasks did in the traced step of worker 0."""
  events = timeline.read(json.loads(pathlib.Path(path).read_text()))
  mine = [e for e in events if e['args']['step'].startswith('worker 0,')]
  first = min(event['start'] for event in mine)
  last = max(event['start'] + event['micros'] for event in mine)
  shown = [e for e in events if first <= e['start'] <= last]
  rows = sorted(
    {(e['task'], e['kind']) for e in shown},
    key=lambda row: (row[0].split()[0] != 'ps', row[0], row[1]),
  )
  figure, axes = pyplot.subplots(figsize=(10, 0.22 * len(rows) + 1))
  for event in shown:
    axes.barh(
      rows.index((event['task'], event['kind'])),
      event['micros'] / 1000,
      left=(event['start'] - first) / 1000,
      color=COLOURS[event['kind']],
    )
  axes.set_yticks(range(len(rows)), [' '.join(row) for row in rows], fontsize=7)
  axes.invert_yaxis()
  axes.set_xlabel('ms')
  figure.tight_layout()
  figure.savefig(out, dpi=110)


TAGS = 'accuracy|loss|staleness_mean|bytes_per_sec|workers_waiting'


@contextlib.contextmanager
def serving_tensorboard(logdir):
  """Runs TensorBoard within the context; yields its scalars' address."""
  (held,) = ports.hold_ports(1)
  port = held.getsockname()[1]
  held.close()
  command = [sys.executable, '-m', 'tensorboard.main', f'--logdir={logdir}']
  process = subprocess.Popen(
    [*command, '--host=127.0.0.1', f'--port={port}'],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  address = f'http://127.0.0.1:{port}/'
  try:
    deadline = time.monotonic() + LIMIT_SECS
    while not _answers(f'{address}data/plugin/scalars/tags'):
      if process.poll() is not None or time.monotonic() > deadline:
        raise processes.ProcessError('TensorBoard does not answer')
      time.sleep(0.5)
    yield f'{address}#scalars&tagFilter={TAGS.replace("|", "%7C")}'
  finally:
    process.terminate()
    process.wait()


def _answers(address):
  """Whether TensorBoard has read some scalars."""
  try:
    with urllib.request.urlopen(address, timeout=10) as answer:
      return 'worker_0' in json.load(answer)
  except (urllib.error.URLError, OSError):
    return False


def draw_page(address, out, width, height):
  """Has Chromium draw a web page, once its scripts have run."""
  browser = shutil.which('chromium') or shutil.which('google-chrome')
  if not browser:
    print(f'no Chromium on this machine: no {out.name}', file=sys.stderr)
    return
  with tempfile.TemporaryDirectory() as profile:
    flags = ['--headless', '--no-sandbox', '--disable-gpu']
    flags += [f'--user-data-dir={profile}', f'--window-size={width},{height}']
    flags += ['--virtual-time-budget=25000', f'--screenshot={out}']
    subprocess.run(
      [browser, *flags, address],
      capture_output=True,
      check=True,
    )


def main(words):
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('out', type=pathlib.Path)
  parser.add_argument('--workers', type=int, default=7)
  parser.add_argument('--rule', default='async_sgd')
  args = parser.parse_args(words)
  args.out.mkdir(parents=True, exist_ok=True)
  out = args.out.resolve()
  with tempfile.TemporaryDirectory() as folder:
    logdir = pathlib.Path(folder, 'run')
    screen = show_in_tmux(logdir, args.workers, args.rule)
    (out / 'live_table.txt').write_text(screen)
    state = watched_run.WatchedRun(str(logdir)).look()
    page = pathlib.Path(html_report.write(str(logdir), state))
    draw_page(page.as_uri(), out / 'report.png', 1000, 1560)
    with serving_tensorboard(logdir) as address:
      draw_page(address, out / 'tensorboard.png', 1300, 900)
    draw_timeline(logdir / 'timeline.json', out / 'timeline.png')


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
