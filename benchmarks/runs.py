"""Runs of the shipped command line for the benchmarks, and their tables."""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).parents[1]


def describe_machine():
  """Returns one line: processor, cores, Python; no host name."""
  model = platform.processor() or platform.machine()
  cpuinfo = pathlib.Path('/proc/cpuinfo')
  if cpuinfo.exists():
    names = [
      line.split(':')[1].strip()
      for line in cpuinfo.read_text().splitlines()
      if line.startswith('model name')
    ]
    model = names[0] if names else model
  cores = len(os.sched_getaffinity(0))
  return f'{cores} cores of {model}, Python {platform.python_version()}'


def launch(num_ps, num_workers, *flags, launch_flags=(), repo=REPO):
  """Runs `python -m distmnist.launch` to its end.

  Args:
    num_ps, num_workers: int.
    *flags: str, of train.
    launch_flags: str each, of launch.
    repo: path, the checkout whose program it is.

  Returns:
    dict with the report of the run, and in seconds since the command started:
    first_step_secs, last_step_secs (their lines on the screen) and end_secs.
  """
  with tempfile.TemporaryDirectory() as logdir:
    command = [
      sys.executable,
      '-m',
      'distmnist.launch',
      f'--num_ps={num_ps}',
      f'--num_workers={num_workers}',
      *launch_flags,
      '--',
      f'--logdir={logdir}',
      *flags,
    ]
    start = time.monotonic()
    process = subprocess.Popen(
      command,
      cwd=repo,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    step_times, lines = [], []
    with process:
      for line in process.stdout:
        lines.append(line)
        if line.startswith('step '):
          step_times.append(time.monotonic() - start)
    code = process.returncode
    if code:
      raise RuntimeError(f'exit code {code} of {command}:\n{"".join(lines)}')
    report = json.loads((pathlib.Path(logdir) / 'report.json').read_text())
    return {
      'report': report,
      'first_step_secs': step_times[0],
      'last_step_secs': step_times[-1],
      'end_secs': time.monotonic() - start,
    }


def median(values):
  return statistics.median(values)


def print_table(header, rows):
  """Prints a Markdown table; cells are str."""
  print('| ' + ' | '.join(header) + ' |')
  print('|' + '---|' * len(header))
  for row in rows:
    print('| ' + ' | '.join(row) + ' |')
