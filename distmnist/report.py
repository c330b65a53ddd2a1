"""Draws a run on one page, LOGDIR/report.html; merges its traced steps.

  python -m distmnist.report --logdir=logs/run

It can be asked during a run and at any time after it, and needs no network. The
page is drawn by matplotlib and Jinja2: pip install distmnist[plots].
"""

from __future__ import annotations

from distmnist.common import cli, files
from distmnist.logdir import find_run, run_flags
from distmnist.watching import html_report, timeline

_FIRST_FLAGS = ('logdir',)


def main() -> None:
  """Writes the page and the timeline, if steps were traced; prints the paths.

  Raises:
    cli.RunError: there is no run, the folder cannot be written, or what draws
      the page is not installed.
  """
  found = find_run.from_flags()
  try:
    if path := timeline.merge(found.logdir):
      print(path)
    changes = [
      (life['step'], run_flags.describe_changes(life['changes']))
      for life in run_flags.read_changes(found.logdir)
    ]
    print(html_report.write(found.logdir, found.state, changes))
  except ImportError as error:
    raise cli.RunError(
      f'no {html_report.NAME}: {error}; pip install distmnist[plots]'
    ) from error
  except OSError as error:
    why = files.describe_refusal(error, 'look at the run as its owner')
    raise cli.RunError(
      f'--logdir={found.logdir} cannot be written: {why}'
    ) from error


def run() -> None:
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
