"""Every update rule on the same work: one table and one plot.

  python benchmarks/strategies.py [--out=FOLDER] [--seeds=N] [--epochs=N]
      [--busy] [CONFIG ...] [-- flags of train]

Each CONFIG, by default every file of configs/strategies, is N runs of two
workers and one ps, or no ps if the rule has none, that differ in --seed; its
name is the row's, which has the means. Runs go one after another, the first
seed of each rule before the second of any, each in FOLDER/NAME/seed_0 with its
report, curves and logs; FOLDER/table.md, table.csv, plot.png and plot.svg cover
them all. Wall seconds run from the command to its exit: start, training,
evaluation and end. With --busy what says how fast a run was is left out.

A run that is complete for the same flags is kept: an interrupted table resumes
where it stopped. To measure a rule again, delete its folder. A run that fails
is marked in the table, the others go on, and the exit code is 1. Needs the
extra `plots` of setup.py; scripts/reproduce_table.sh installs it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import sys
import time

from absl import flags as absl_flags
from lib import options, processes, runs, strategy_table, tables

CONFIGS = processes.REPO / 'configs' / 'strategies'
RESULTS = processes.REPO / 'results' / 'strategies'
STRATEGIES_WITHOUT_PS = {'ring_allreduce'}
# A table never resumes a run midway, and saves cost a run time: the checkpoints
# at the start and at the end are enough.
FEW_CHECKPOINTS = '--save_secs=86400'
RECORD = 'run.json'


@dataclasses.dataclass
class Run:
  """One row of the table.

  Attributes:
    name: str, the config's.
    config: path of the flagfile.
    extra: list of str, flags of train after the config's, with --seed.
    folder: path, train's --logdir.
  """

  name: str
  config: pathlib.Path
  extra: list[str]
  folder: pathlib.Path

  def read_flags(self):
    """Returns {flag of train: value}, both str; the last duplicate wins."""
    words = absl_flags.FlagValues().read_flags_from_files(
      [f'--flagfile={self.config}', *self.extra], force_gnu=False
    )
    pairs = (word.lstrip('-').partition('=') for word in words)
    return {name: value for name, _, value in pairs}

  def command(self):
    """Returns the command to run, a list of str."""
    has_ps = self.read_flags().get('strategy') not in STRATEGIES_WITHOUT_PS
    flags = [
      *(FEW_CHECKPOINTS, f'--flagfile={self.config}', *self.extra),
      f'--logdir={self.folder}',
    ]
    return runs.make_command(int(has_ps), strategy_table.NUM_WORKERS, flags)

  def execute(self):
    """Runs the command to its end, whatever that is, and keeps a record."""
    # This run would resume from the checkpoints of an earlier try.
    if self.folder.exists():
      shutil.rmtree(self.folder)
    self.folder.mkdir(parents=True)
    record = {
      'flags': self.read_flags(),
      'machine': tables.describe_machine(),
      'exit_code': None,
      'wall_secs': None,
    }
    # Also written beforehand: it marks the folder as ours to delete.
    write_json(self.folder / RECORD, record)
    # Paths among the flags are relative to our working directory.
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
    """Returns (record, report), dicts; None for a missing one."""
    names = RECORD, 'report.json'
    return tuple(read_json(self.folder / name) for name in names)


def read_json(path):
  """Returns what the file holds; None if it is missing or incomplete."""
  try:
    return json.loads(path.read_text('utf-8'))
  except (FileNotFoundError, json.JSONDecodeError):
    return None


def write_json(path, value):
  path.write_text(json.dumps(value, indent=2) + '\n', 'utf-8')


# ---- The program ----
def find_runs(names, out, extra, num_seeds):
  """Returns the list of Run, those of a seed after each other.

  Args:
    names: list of str, files of configs/strategies without their suffix, or
      paths of flagfiles; if empty, all of configs/strategies.
    out: path of the folder for all runs.
    extra: list of str, flags of train.
    num_seeds: int, of each config: from 0 on.

  Raises:
    ValueError: no such file, two of the same name, or a folder not ours.
  """
  paths = [CONFIGS / f'{name}.flags' for name in names]
  for i, name in enumerate(names):
    if not paths[i].is_file():
      paths[i] = pathlib.Path(name).absolute()
    if not paths[i].is_file():
      raise ValueError(f'{name} is no file, and none of {CONFIGS} either')
  found = {}
  paths = paths or sorted(CONFIGS.glob('*.flags'))
  for seed, path in itertools.product(range(num_seeds), paths):
    folder = out / path.stem / f'seed_{seed}'
    if folder in found:
      raise ValueError(f'two configs are called {path.stem}: rename one')
    if folder.exists() and not (folder / RECORD).exists():
      raise ValueError(
        f'{folder} is there and no run of this table: choose another --out'
      )
    words = [*extra, f'--seed={seed}']
    found[folder] = Run(path.stem, path, words, folder)
  return list(found.values())


def run_all(todo, out, is_busy):
  """Runs what is not complete; writes the table after each run.

  Returns:
    The names of the runs that failed, a list of str.
  """
  results, failed = {}, []
  for number, run in enumerate(todo, 1):
    head = f'[{number}/{len(todo)}] {run.name}, {run.folder.name}'
    if strategy_table.is_complete(*run.load(), run.read_flags()):
      print(
        f'{head}: kept, complete for the same flags; to run it again, delete '
        f'{run.folder}',
        flush=True,
      )
    else:
      print(f'{head}: running, log in {run.folder}/launch.log', flush=True)
      run.execute()
    record, report = run.load()
    results.setdefault(run.name, []).append((record, report))
    if strategy_table.is_complete(record, report, run.read_flags()):
      accuracy, secs = report['test_accuracy'], record['wall_secs']
      print(f'  test accuracy {accuracy:.4f} in {secs:.1f} s', flush=True)
    else:
      failed.append(f'{run.name}, {run.folder.name}')
      lines = (run.folder / 'launch.log').read_text().splitlines()[-5:]
      print('  FAILED', *lines, sep='\n  | ', flush=True)
    strategy_table.write_results(results, out, is_busy)
  return failed


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  words, extra = options.cut(words)
  parser = options.make_parser(__doc__)
  add = parser.add_argument
  text = 'folder for the table, the plot and the runs (%(default)s)'
  add('--out', type=pathlib.Path, default=RESULTS, help=text)
  text = 'runs of each rule, which differ in --seed (%(default)s)'
  add('--seeds', type=int, default=3, choices=range(1, 101), help=text)
  text = 'leave out seconds and images/s: something else runs on this machine'
  add('--busy', action='store_true', help=text)
  text = "passes over the images in all, in place of the configs'"
  add('--epochs', help=text)
  text = 'name or path of a flagfile'
  add('configs', nargs='*', metavar='CONFIG', help=text)
  args = parser.parse_args(words)
  if args.epochs is not None:
    extra = [f'--epochs={args.epochs}', *extra]
  for word in extra:
    name, _, _ = word.lstrip('-').partition('=')
    if not word.startswith('-') or name in ('logdir', 'seed'):
      parser.error(
        f'{word!r} after --: expected flags as --name=value, and neither'
        ' --logdir nor --seed'
      )
  out = args.out.absolute()
  try:
    todo = find_runs(args.configs, out, extra, args.seeds)
  except ValueError as error:
    parser.error(error)
  out.mkdir(parents=True, exist_ok=True)
  failed = run_all(todo, out, args.busy)
  print(f'\n{(out / "table.md").read_text("utf-8")}\nall in {out}')
  if failed:
    print(f'failed: {"; ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
