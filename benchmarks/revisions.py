"""The work tree's program beside that of an older commit, in one run.

  python benchmarks/revisions.py COMMIT [repeats]

One repeat runs each case with both programs, one after the other and with
alternating order, so that a ratio is of neighbouring runs; the numbers are
medians, the ratio the median over the pairs. It shows what a change costs:

  images/s      of the whole cluster, from report.json
  first step    seconds from the command to the chief's first step
  end           seconds from the last step to the launcher's exit
"""

import pathlib
import subprocess
import sys
import tempfile

import processes
import runs
import tables

NETS = {
  'mlp': ['--model=mlp', '--batch_size=100', '--train_steps=4000'],
  'cnn': ['--model=cnn', '--batch_size=128', '--train_steps=100'],
}
COMMON = ['--dataset=synthetic', '--optimizer=adam', '--learning_rate=0.001']
TEN_STEPS = ['--steps_per_run=10']
# (name, net, flags)
CASES = [
  ('mlp, async', 'mlp', []),
  ('mlp, async, 10 steps a run', 'mlp', TEN_STEPS),
  ('mlp, sync, 10 steps a run', 'mlp', ['--strategy=sync_sgd', *TEN_STEPS]),
  ('mlp, agn, 10 steps a run', 'mlp', ['--strategy=agn', *TEN_STEPS]),
  ('cnn, async', 'cnn', []),
  ('cnn, sync', 'cnn', ['--strategy=sync_sgd']),
]


def measure(repo, net, flags):
  """Returns (images/s, seconds to the first step, seconds to the end)."""
  steps = NETS[net]
  found = runs.launch(1, 2, *COMMON, *steps, *flags, repo=repo)
  report = found['report']
  return (
    # Older revisions call all examples images.
    report.get('examples_per_sec') or report['images_per_sec'],
    found['first_step_secs'],
    found['end_secs'] - found['last_step_secs'],
  )


def make_rows(name, pairs):
  """Returns the rows of a case, lists of str.

  Args:
    name: str.
    pairs: list of (numbers of the older, numbers of the newer), as `measure`
      returns them.
  """
  rows = []
  for index, (what, form) in enumerate(
    [('images/s', ',.0f'), ('first step', '.2f'), ('end', '.2f')]
  ):
    old, new = ([found[who][index] for found in pairs] for who in (0, 1))
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    cells = [format(tables.median(numbers), form) for numbers in (old, new)]
    cells.append(f'{tables.median(ratios):.3f}')
    rows.append([name, what, *cells, tables.format_range(ratios, '.3f')])
  return rows


def main(commit, repeats=5):
  print(f'{tables.describe_machine()}; medians of {repeats} pairs\n')
  found = {name: [] for name, _, _ in CASES}
  with tempfile.TemporaryDirectory() as folder:
    old = pathlib.Path(folder) / 'old'
    git = ['git', '-C', str(processes.REPO), 'worktree']
    subprocess.run(
      [*git, 'add', '--quiet', '--detach', str(old), commit], check=True
    )
    try:
      for repeat in range(repeats):
        for name, net, flags in CASES:
          repos = [old, processes.REPO]
          order = repos if repeat % 2 else repos[::-1]
          numbers = {repo: measure(repo, net, flags) for repo in order}
          found[name].append((numbers[old], numbers[processes.REPO]))
          ratio = numbers[processes.REPO][0] / numbers[old][0]
          # All takes minutes: an interrupted run has then shown something.
          print(f'{name}: {ratio:.3f} times the images/s', file=sys.stderr)
    finally:
      subprocess.run([*git, 'remove', '--force', str(old)], check=True)
  header = ['case', 'what', commit[:7], 'work tree', 'ratio', 'of the pairs']
  tables.print_table(
    header,
    [row for name, pairs in found.items() for row in make_rows(name, pairs)],
  )


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1], *map(int, sys.argv[2:]))
