"""Every update rule on the same work: one table and one plot.

  python benchmarks/strategies.py [--out=FOLDER] [--epochs=N] [CONFIG ...]
      [-- flags of train]

Each CONFIG, by default every file of configs/strategies, is one run of two
workers and a ps, or none where the rule has none; its name is the row's. One
run after the other, each in FOLDER/NAME with its report, curves and logs;
FOLDER/table.md, table.csv and plot.png have them all. Wall seconds are those
from the command to its exit: start, training, evaluation and end.

A run that is complete for the same flags is kept: an interrupted table goes on
where it was. To measure a rule again, delete its folder. A run that fails is
marked in the table, the others go on, and the exit code is 1. Needs the extra
`plots` of setup.py; scripts/reproduce_table.sh brings it.
"""

import argparse
import csv
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import runs
from absl import flags as absl_flags
from matplotlib import figure as figure_lib
from matplotlib import ticker

CONFIGS = runs.REPO / 'configs' / 'strategies'
NUM_WORKERS = 2
STRATEGIES_WITHOUT_PS = {'ring_allreduce'}
# A table never resumes a run in the middle, and a save takes time from it: the
# checkpoints of the start and of the end are enough.
FEW_CHECKPOINTS = '--save_secs=86400'
RECORD = 'run.json'


@dataclasses.dataclass
class Run:
  """One row of the table.

  Attributes:
    name: str, the config's.
    config: path of the flagfile.
    extra: list of str, flags of train that come after the config's.
    folder: path, train's --logdir.
  """

  name: str
  config: pathlib.Path
  extra: list[str]
  folder: pathlib.Path

  def read_flags(self):
    """Returns {flag of train: value}, both str; of two the later wins."""
    words = absl_flags.FlagValues().read_flags_from_files(
      [f'--flagfile={self.config}', *self.extra], force_gnu=False
    )
    pairs = (word.lstrip('-').partition('=') for word in words)
    return {name: value for name, _, value in pairs}

  def command(self):
    """Returns what is run, a list of str."""
    has_ps = self.read_flags().get('strategy') not in STRATEGIES_WITHOUT_PS
    return [
      *(sys.executable, '-m', 'distmnist.launch'),
      *(f'--num_ps={int(has_ps)}', f'--num_workers={NUM_WORKERS}', '--'),
      *(FEW_CHECKPOINTS, f'--flagfile={self.config}', *self.extra),
      f'--logdir={self.folder}',
    ]

  def execute(self):
    """Runs it to its end, whatever that is, and keeps a record."""
    # Checkpoints of an earlier try would be taken for the start of this one.
    if self.folder.exists():
      shutil.rmtree(self.folder)
    self.folder.mkdir(parents=True)
    record = {
      'flags': self.read_flags(),
      'machine': runs.describe_machine(),
      'exit_code': None,
      'wall_secs': None,
    }
    # Written before as well: it says that the folder is ours to delete.
    write_json(self.folder / RECORD, record)
    path = os.pathsep.join(
      [str(runs.REPO), *filter(None, [os.environ.get('PYTHONPATH')])]
    )
    start = time.monotonic()
    with open(self.folder / 'launch.log', 'w') as log:
      process = subprocess.Popen(
        self.command(),
        env={**os.environ, 'PYTHONPATH': path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # A second Ctrl-C, ours after the terminal's, would kill at once.
        start_new_session=True,
      )
      try:
        record['exit_code'] = process.wait()
      finally:
        if process.poll() is None:
          process.terminate()
          process.wait()
    record['wall_secs'] = round(time.monotonic() - start, 3)
    write_json(self.folder / RECORD, record)

  def load(self):
    """Returns (record, report), dicts; None for what is not there."""
    return read_json(self.folder / RECORD), read_json(
      self.folder / 'report.json'
    )


def is_complete(record, report, flags):
  """Whether a run needs not be run again.

  Args:
    record: dict of `Run.execute`, or None.
    report: dict, the report.json of the run, or None.
    flags: dict of str, what it should have been run with.
  """
  return (
    record is not None
    and record['flags'] == flags
    and record['exit_code'] == 0
    and (report or {}).get('test_accuracy') is not None
  )


def read_json(path):
  """Returns what the file holds; None if it is not there, or not whole."""
  try:
    return json.loads(path.read_text('utf-8'))
  except (FileNotFoundError, json.JSONDecodeError):
    return None


def write_json(path, value):
  path.write_text(json.dumps(value, indent=2) + '\n', 'utf-8')


# ---- The table ----
def format_mb(value):
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


# Key of a row and of the CSV, title, format of a value.
COLUMNS = [
  ('test_accuracy', 'test accuracy', '{:.4f}'.format),
  ('wall_secs', 'wall s', '{:.0f}'.format),
  ('images_per_sec', 'images/s', '{:,.0f}'.format),
  ('pushes', 'pushes', '{:,}'.format),
  ('mb_pulled', 'MB pulled a worker', format_mb),
  ('mb_pushed', 'MB pushed a worker', format_mb),
  ('staleness_mean', 'staleness, mean', '{:.2f}'.format),
  ('staleness_max', 'max', '{}'.format),
  ('global_step', 'global steps', '{:,}'.format),
  ('images', 'images', '{:,}'.format),
]


def make_row(name, record, report):
  """Returns a row of the table: a dict with None for what is not known.

  Args:
    name: str.
    record: dict of `Run.execute`.
    report: dict, or None; not every report has all of it.
  """
  report = report or {}
  is_ok = is_complete(record, report, record['flags'])
  row = {'name': name, 'status': 'ok' if is_ok else 'failed'}
  row |= {key: report.get(key) if is_ok else None for key, *_ in COLUMNS}
  row['wall_secs'] = record['wall_secs']
  for way in ('pulled', 'pushed'):
    num_bytes = report.get(f'bytes_{way}')
    if is_ok and num_bytes is not None:
      row[f'mb_{way}'] = num_bytes / 1e6 / len(report['workers'])
  return row


def format_table(rows):
  """Returns the rows as a Markdown table; '-' is for what is not known."""
  lines = [
    '| ' + ' | '.join(['rule', *(title for _, title, _ in COLUMNS)]) + ' |',
    '|---|' + '--:|' * len(COLUMNS),
  ]
  for row in rows:
    cells = [
      '-' if row[key] is None else format_value(row[key])
      for key, _, format_value in COLUMNS
    ]
    if row['status'] != 'ok':
      cells[0] = row['status']
    lines.append('| ' + ' | '.join([row['name'], *cells]) + ' |')
  return '\n'.join(lines) + '\n'


def write_csv(rows, file):
  """Writes the rows with all their digits; an empty cell is not known."""
  keys = ['name', 'status', *(key for key, *_ in COLUMNS)]
  writer = csv.DictWriter(file, keys, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)


def describe(reports):
  """Returns what was run, a line; where runs differ, all values are named."""

  def find(name):
    found = {report['flags'].get(name) for report in reports}
    return '/'.join(sorted(str(value).removesuffix('.0') for value in found))

  return (
    f'{find("model")} on {find("dataset")}, {NUM_WORKERS} workers, '
    f'batch_size={find("batch_size")}, epochs={find("epochs")}'
  )


# ---- The plot ----
INK, FAINT = '#24292f', '#d0d7de'
PULLED, PUSHED, DOT = '#1f6feb', '#f0883e', '#8250df'


def build_figure(rows, title):
  """Returns a matplotlib Figure: a line a rule, the most accurate one above.

  One panel a quantity and a rule's name once, at the left: sixteen rules are
  too close to one another for labels in a scatter plot. A white ground keeps
  it readable on a dark page.

  Args:
    rows: list of dict, at least one, as of `make_row`.
    title: str.
  """
  rows = sorted(rows, key=lambda row: row['test_accuracy'] or 0)
  places = range(len(rows))
  figure = figure_lib.Figure(
    figsize=(9.5, 1.1 + 0.25 * len(rows)),
    dpi=110,
    facecolor='white',
    layout='constrained',
  )
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.06)
  figure.suptitle(title, x=0.01, ha='left', fontsize=10, color=INK)
  accuracy, wall, moved = figure.subplots(
    1, 3, sharey=True, width_ratios=(3, 2, 3)
  )
  for axes in (accuracy, wall, moved):
    axes.set_axisbelow(True)
    axes.grid(axis='y', color=FAINT, linewidth=0.6)
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4, steps=[1, 2, 5, 10]))
  accuracy.set_yticks(places, [row['name'] for row in rows])
  accuracy.set_ylim(-0.6, len(rows) - 0.4)

  def write(axes, x, place, text):
    axes.annotate(
      text,
      (x, place),
      xytext=(5, 0),
      textcoords='offset points',
      va='center',
      fontsize=7.5,
      color=INK,
      # The lines of the grid stop at the words.
      bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.5},
    )

  def draw_title(axes, *parts):
    """Parts are (text, colour), one after the other: a legend in words."""
    xy, coordinates = (0, 1.01), 'axes fraction'
    for text, color in parts:
      coordinates = axes.annotate(
        text, xy, xycoords=coordinates, va='bottom', fontsize=9, color=color
      )
      xy = (1, 0)  # The last part's right end.

  draw_title(accuracy, ('test accuracy, %', DOT))
  percents = [100 * (row['test_accuracy'] or 0) for row in rows]
  known = [percent for percent in percents if percent] or [0, 100]
  low, high = min(known), max(known)
  span = max(high - low, 0.1)
  accuracy.set_xlim(low - 0.1 * span, high + 0.25 * span)
  for place, row, percent in zip(places, rows, percents, strict=True):
    if percent:
      accuracy.plot(percent, place, 'o', color=DOT, markersize=6)
      write(accuracy, percent, place, f'{percent:.2f}')
    else:
      write(accuracy, low - 0.1 * span, place, row['status'])

  draw_title(wall, ('wall seconds', INK))
  draw_title(
    moved,
    ('MB pulled', PULLED),
    (' + ', INK),
    ('pushed', PUSHED),
    (' a worker', INK),
  )
  ends = {wall: 1, moved: 1}
  for place, row in zip(places, rows, strict=True):
    secs, mb = row['wall_secs'], [row['mb_pulled'], row['mb_pushed']]
    if row['status'] == 'ok':
      wall.barh(place, secs, 0.55, color='#8c959f')
      write(wall, secs, place, f'{secs:.0f}')
      ends[wall] = max(ends[wall], secs)
    if None in mb:
      write(moved, 0, place, '-')
      continue
    moved.barh(place, mb[0], 0.55, color=PULLED)
    moved.barh(place, mb[1], 0.55, left=mb[0], color=PUSHED)
    write(moved, sum(mb), place, format_mb(sum(mb)))
    ends[moved] = max(ends[moved], sum(mb))
  for axes, end in ends.items():
    axes.set_xlim(0, 1.25 * end)
  moved.xaxis.set_major_formatter('{x:,.0f}')
  return figure


# ---- The program ----
def find_runs(names, out, extra):
  """Returns the list of Run.

  Args:
    names: list of str, files of configs/strategies without their ending, or
      paths of flagfiles; all of configs/strategies if it is empty.
    out: path of the folder for all.
    extra: list of str, flags of train.

  Raises:
    ValueError: no such file, two of one name, or a folder that is not ours.
  """
  paths = [CONFIGS / f'{name}.flags' for name in names]
  for i, name in enumerate(names):
    if not paths[i].is_file():
      paths[i] = pathlib.Path(name).absolute()
    if not paths[i].is_file():
      raise ValueError(f'{name} is no file, and none of {CONFIGS} either')
  found = {}
  for path in paths or sorted(CONFIGS.glob('*.flags')):
    folder = out / path.stem
    if path.stem in found:
      raise ValueError(f'two configs are called {path.stem}: rename one')
    if folder.exists() and not (folder / RECORD).exists():
      raise ValueError(
        f'{folder} is there and no run of this table: choose another --out'
      )
    found[path.stem] = Run(path.stem, path, extra, folder)
  return list(found.values())


def run_all(todo, out):
  """Runs what is not complete; the table is written after each run."""
  results = []
  for number, run in enumerate(todo, 1):
    head = f'[{number}/{len(todo)}] {run.name}'
    if is_complete(*run.load(), run.read_flags()):
      print(
        f'{head}: kept, complete for the same flags; to run it again, delete '
        f'{run.folder}',
        flush=True,
      )
    else:
      print(f'{head}: running, log in {run.folder}/launch.log', flush=True)
      run.execute()
    results.append((run.name, *run.load()))
    row = make_row(*results[-1])
    if row['status'] == 'ok':
      print(
        f'  test accuracy {row["test_accuracy"]:.4f} in '
        f'{row["wall_secs"]:.1f} s',
        flush=True,
      )
    else:
      lines = (run.folder / 'launch.log').read_text().splitlines()[-5:]
      print('  FAILED', *lines, sep='\n  | ', flush=True)
    write_results(results, out)
  return [make_row(*result) for result in results]


def write_results(results, out):
  """Writes the table and the plot of a list of (name, record, report)."""
  rows = [make_row(*result) for result in results]
  reports = [report for *_, report in results if report]
  machines = sorted({record['machine'] for _, record, _ in results})
  title = describe(reports) if reports else 'no run was complete'
  text = f'{title}; {" and ".join(machines)}\n\n{format_table(rows)}'
  (out / 'table.md').write_text(text, 'utf-8')
  with open(out / 'table.csv', 'w', encoding='utf-8') as file:
    write_csv(rows, file)
  build_figure(rows, title).savefig(out / 'plot.png')


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  cut = words.index('--') if '--' in words else len(words)
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--out',
    type=pathlib.Path,
    default=runs.REPO / 'results' / 'strategies',
    help='folder for the table, the plot and the runs (%(default)s)',
  )
  parser.add_argument(
    '--epochs', help="passes over the images in all, in place of the configs'"
  )
  parser.add_argument(
    'configs', nargs='*', metavar='CONFIG', help='name or path of a flagfile'
  )
  args = parser.parse_args(words[:cut])
  extra = words[cut + 1 :]
  if args.epochs is not None:
    extra = [f'--epochs={args.epochs}', *extra]
  for word in extra:
    if not word.startswith('-') or word.lstrip('-').startswith('logdir'):
      parser.error(
        f'{word!r} after --: expected flags as --name=value, and no --logdir'
      )
  out = args.out.absolute()
  try:
    todo = find_runs(args.configs, out, extra)
  except ValueError as error:
    parser.error(error)
  out.mkdir(parents=True, exist_ok=True)
  rows = run_all(todo, out)
  print(f'\n{(out / "table.md").read_text("utf-8")}\nall in {out}')
  failed = [row['name'] for row in rows if row['status'] != 'ok']
  if failed:
    print(f'failed: {", ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


if __name__ == '__main__':
  for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    # One that is ignored, as under nohup, stays so.
    if signal.getsignal(signum) != signal.SIG_IGN:
      signal.signal(signum, lambda number, _: sys.exit(128 + number))
  sys.exit(main(sys.argv[1:]))
