"""What it costs to watch a run, in images per second.

  python benchmarks/watching.py [repeats [model]]

First the CPU time of a line of metrics.jsonl, in a process with as many
connections as a task in a cluster of ten. Then, with 1 ps and 2 workers on this
machine, in turn: a run that says nothing until its end (--log_secs=1000000);
one with the defaults, with a line in metrics.jsonl and on the screen every 2 s;
and one with everything that watches: the live table and the Prometheus port,
read each second. Each ratio is of neighbouring runs; the median of them is
printed, with the lowest and the highest.
"""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import processes
import runs
import tables

from distmnist.watching import own_metrics

COMMON = ['--dataset=synthetic', '--optimizer=adam', '--learning_rate=0.001']
MODELS = {
  'mlp': ['--model=mlp', '--batch_size=100', '--epochs=10'],
  'cnn': ['--model=cnn', '--batch_size=128', '--epochs=0.3'],
}
SILENT = ['--log_secs=1000000']
PORT = 19917
ALL = '--live_table=on', f'--metrics_port={PORT}'
ASK_SECS = 1.0
LINE_STALENESS = dict.fromkeys(range(40), 3)


def keep_asking(is_over):
  """Reads the metrics as Prometheus would, until `is_over` is set."""
  while not is_over.wait(ASK_SECS):
    with contextlib.suppress(OSError):
      urllib.request.urlopen(f'http://127.0.0.1:{PORT}/metrics').read()


def measure(flags, launch_flags):
  """Returns images/s of a run."""
  is_over = threading.Event()
  asking = threading.Thread(target=keep_asking, args=[is_over])
  if launch_flags:
    asking.start()
  with tempfile.TemporaryDirectory() as folder:
    words = [*COMMON, *flags, f'--logdir={folder}/run']
    command = runs.make_command(1, 2, words, launch_flags)
    try:
      subprocess.run(
        command, cwd=processes.REPO, capture_output=True, check=True
      )
    finally:
      is_over.set()
    report = json.loads(pathlib.Path(folder, 'run/report.json').read_text())
  return report['examples_per_sec']


def measure_line(num_lines=300, num_connections=20):
  """Returns the milliseconds of CPU time that a line takes."""
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    listener = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
    for _ in range(num_connections):
      client = socket.create_connection(listener.getsockname())
      stack.enter_context(client)
      stack.enter_context(listener.accept()[0])
    mine = own_metrics.Sampler(folder, 'worker 0', 'a', 60)
    mine.collect = lambda: {'state': 'training', 'staleness': LINE_STALENESS}
    start = time.thread_time()
    for _ in range(num_lines):
      mine.sample()
    return 1000 * (time.thread_time() - start) / num_lines


def main(repeats=5, *models):
  print(f'CPU time of a line of metrics.jsonl: {measure_line():.2f} ms\n')
  cases = {
    'silent': (SILENT, ()),
    'as by default': ([], ()),
    'all that watches': ([], ALL),
  }
  print(f'{tables.describe_machine()}; {repeats} runs of each in turn\n')
  rows = []
  for model in models or MODELS:
    found = {name: [] for name in cases}
    for _ in range(repeats):
      for name, (flags, launch_flags) in cases.items():
        found[name].append(measure([*MODELS[model], *flags], launch_flags))
        print(model, name, found[name][-1], file=sys.stderr, flush=True)
    for name, rates in found.items():
      pairs = zip(rates, found['silent'], strict=True)
      ratios = sorted(rate / silent for rate, silent in pairs)
      rows.append(
        [
          *(model, name, f'{tables.median(rates):,.0f}'),
          f'{tables.median(ratios):.3f}',
          f'{ratios[0]:.3f} to {ratios[-1]:.3f}',
        ]
      )
  tables.print_table(
    ['model', 'run', 'images/s', 'over silent', 'of single pairs'], rows
  )


if __name__ == '__main__':
  words = [int(w) if w.isdecimal() else w for w in sys.argv[1:]]
  processes.exit_by(main, *words)
