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

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import time

import options
import processes
import runs
import strategy_table
import tables
from absl import flags as absl_flags

CONFIGS = processes.REPO / 'configs' / 'strategies'
RESULTS = processes.REPO / 'results' / 'strategies'
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
    flags = [
      *(FEW_CHECKPOINTS, f'--flagfile={self.config}', *self.extra),
      f'--logdir={self.folder}',
    ]
    return runs.make_command(int(has_ps), strategy_table.NUM_WORKERS, flags)

  def execute(self):
    """Runs it to its end, whatever that is, and keeps a record."""
    # Checkpoints of an earlier try would be taken for the start of this one.
    if self.folder.exists():
      shutil.rmtree(self.folder)
    self.folder.mkdir(parents=True)
    record = {
      'flags': self.read_flags(),
      'machine': tables.describe_machine(),
      'exit_code': None,
      'wall_secs': None,
    }
    # Written before as well: it says that the folder is ours to delete.
    write_json(self.folder / RECORD, record)
    # Paths among the flags are relative to the folder in which we are.
    path = os.pathsep.join(
      [str(processes.REPO), *filter(None, [os.environ.get('PYTHONPATH')])]
    )
    start = time.monotonic()
    launch = processes.Process(
      'launch',
      self.command(),
      self.folder / 'launch.log',
      env={'PYTHONPATH': path},
      cwd=None,
      has_tasks=True,
    )
    with contextlib.suppress(processes.ProcessError):
      processes.Group().run([launch])
    record['exit_code'] = launch.code
    record['wall_secs'] = round(time.monotonic() - start, 3)
    write_json(self.folder / RECORD, record)

  def load(self):
    """Returns (record, report), dicts; None for what is not there."""
    names = RECORD, 'report.json'
    return tuple(read_json(self.folder / name) for name in names)


def read_json(path):
  """Returns what the file holds; None if it is not there, or not whole."""
  try:
    return json.loads(path.read_text('utf-8'))
  except (FileNotFoundError, json.JSONDecodeError):
    return None


def write_json(path, value):
  path.write_text(json.dumps(value, indent=2) + '\n', 'utf-8')


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
    if strategy_table.is_complete(*run.load(), run.read_flags()):
      print(
        f'{head}: kept, complete for the same flags; to run it again, delete '
        f'{run.folder}',
        flush=True,
      )
    else:
      print(f'{head}: running, log in {run.folder}/launch.log', flush=True)
      run.execute()
    results.append((run.name, *run.load()))
    row = strategy_table.make_row(*results[-1])
    if row['status'] == 'ok':
      accuracy, secs = row['test_accuracy'], row['wall_secs']
      print(f'  test accuracy {accuracy:.4f} in {secs:.1f} s', flush=True)
    else:
      lines = (run.folder / 'launch.log').read_text().splitlines()[-5:]
      print('  FAILED', *lines, sep='\n  | ', flush=True)
    strategy_table.write_results(results, out)
  return [strategy_table.make_row(*result) for result in results]


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  words, extra = options.cut(words)
  parser = options.make_parser(__doc__)
  add = parser.add_argument
  text = 'folder for the table, the plot and the runs (%(default)s)'
  add('--out', type=pathlib.Path, default=RESULTS, help=text)
  text = "passes over the images in all, in place of the configs'"
  add('--epochs', help=text)
  text = 'name or path of a flagfile'
  add('configs', nargs='*', metavar='CONFIG', help=text)
  args = parser.parse_args(words)
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
  processes.exit_by(main, sys.argv[1:])
