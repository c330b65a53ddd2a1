"""Chaos: faults in every role, at random but seeded moments.

The driver is that of benchmarks/faults.py, which makes the table of faults in
docs/measured.md; here are a few faults a rule.
"""

import random

import pytest

from distmnist.common.names import STRATEGIES
from tests.support.runner import import_benchmark

# For each rule the seed of its moments, steps for some seconds of work, the
# faults, in an order that the moments allow, and the least accuracy: 0.015 less
# than the mean of runs without faults, ten standard deviations of these. Other
# tests have kills in each role under every rule, and tasks that are told to end
# or suspended.
RUNS = {
  # One that locks the center.
  'dynsgd': (114, 1200, ['in restore', 'in save', 'ENOSPC'], 0.947),
  'sync_sgd with a backup': (124, 2000, ['pair', 'EIO', 'at end'], 0.955),
}

faults = import_benchmark('faults')
kinds = import_benchmark('lib.fault_kinds')
training = import_benchmark('lib.fault_training')
runs = import_benchmark('lib.runs')


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('rule', RUNS)
def test_faults_in_every_role_cost_neither_the_run_nor_its_accuracy(
  mnist_dir, tmp_path, rule
):
  seed, num_steps, wanted, least_accuracy = RUNS[rule]
  rng = random.Random(seed)
  names = runs.name_tasks(*training.count_tasks(rule))
  chosen = [kinds.draw(rng, names, [kind]) for kind in wanted]
  marks = sorted(fault.mark for fault in chosen)
  for fault, mark in zip(chosen, marks, strict=True):
    fault.mark = mark
  flags = [f'--train_steps={num_steps}', f'--data_dir={mnist_dir}']
  problem, report = training.run_with_faults(
    rule, chosen, flags, keep=tmp_path / 'kept'
  )
  assert not problem, f'{problem}; logs in {tmp_path}/kept'
  done = [fault for fault in chosen if fault.is_survived]
  # If all is slow, the training may end before the last of them, or before the
  # lost task is back: it then has no time of recovery.
  assert len(done) >= 2
  assert [fault.violations for fault in chosen] == [[]] * len(chosen)
  secs = [f.recover_secs for f in done if f.recover_secs is not None]
  assert secs, done
  # It takes a few seconds; ten are allowed by our own claim.
  assert max(secs) < 30, done
  assert report['test_accuracy'] >= least_accuracy


def test_a_seed_and_a_number_make_the_same_fault_again():
  def draw(seed, index):
    return faults.draw_fault(
      seed, index, list(training.RULES), list(kinds.KINDS)
    )

  drawn = [draw(0, i) for i in range(1000)]
  assert drawn == [draw(0, i) for i in range(1000)]
  assert drawn != [draw(1, i) for i in range(1000)]
  # Of every kind and every rule, over every role.
  assert {fault.kind for _, fault in drawn} == {*kinds.KINDS}
  assert {rule for rule, _ in drawn} == {*training.RULES}
  assert {fault.task for _, fault in drawn} == {*runs.name_tasks(2, 3)}
  for rule, fault in drawn:
    tasks = {fault.task, fault.other} - {''}
    assert tasks <= {*runs.name_tasks(*training.count_tasks(rule))}


def test_every_rule_of_the_registry_is_hit():
  names = {rule.split()[0] for rule in training.RULES}
  assert names == {*training.registry.names(STRATEGIES)}


def test_what_broke_something_is_told_with_the_command_to_repeat_it():
  args, extra = faults.parse_args(
    ['--seed=3', '--kinds=kill,term', '--', '--data_dir=d']
  )
  assert faults.format_again(args, extra, [7]) == (
    "python benchmarks/faults.py --seed=3 --kinds='kill,term' --only=7 -- "
    '--data_dir=d'
  )


def test_the_table_has_a_row_a_kind_and_role(capsys):
  def make(task, kind, **fields):
    return 'async_sgd', kinds.Fault(task, kind, **fields)

  faults.print_faults(
    [
      make('ps 1', 'kill', is_survived=True, recover_secs=2.0, steps_lost=7),
      make('ps 0', 'kill', violations=['one']),
      make('worker 0', 'pair', other='ps 1', is_survived=True),
      make('worker 2', 'loss', is_survived=True),
    ]
  )
  lines = capsys.readouterr().out.splitlines()
  assert lines[-6:] == [
    '|---|---|---|---|---|---|---|',
    '| kill | ps | 1 of 2 | 1 | 2.0 | 2.0 | 7 |',
    '| pair | chief and ps | 1 of 1 | 0 | - | - | 0 |',
    '| loss | all | 1 of 1 | 0 | - | - | 0 |',
    '',
    '3 of 4 survived, 1 broke one',
  ]
