"""Draws a run on one page, LOGDIR/report.html; merges its traced steps.

  python -m distmnist.report --logdir=logs/run

It needs no network, now or later. A launcher that waits does the same at the
end of a run.
"""

from distmnist.common import cli, files
from distmnist.logdir import find_run
from distmnist.watching import html_report, timeline

_FIRST_FLAGS = ('logdir',)


def main():
  """Writes the page and prints its path."""
  logdir = find_run.from_flags().logdir
  try:
    print(html_report.write(logdir))
    if path := timeline.merge(logdir):
      print(path)
  except OSError as error:
    why = files.describe_refusal(error, 'look at the run as its owner')
    raise cli.RunError(f'--logdir={logdir} cannot be written: {why}') from error


def run():
  cli.run(main, first_flags=_FIRST_FLAGS)


if __name__ == '__main__':
  run()
