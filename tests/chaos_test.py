"""Chaos: faults in every role, at random but seeded moments.

The driver is that of benchmarks/faults.py, which makes the table of the
README; here a few faults a rule, in every run of the tests.
"""

import pytest

from tests.runner import import_benchmark

# Of each rule some seconds of work, and four faults in it.
STEPS = {
  'async_sgd': 6000,
  'sync_sgd': 1500,
  'sync_sgd with a backup': 2500,
  'downpour': 6000,
  'easgd': 1500,  # Exchanges; ten times as many local steps.
}


@pytest.fixture(scope='module')
def faults():
  return import_benchmark('faults')


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('rule', STEPS)
def test_faults_in_every_role_cost_neither_the_run_nor_its_accuracy(
  faults, mnist_dir, tmp_path, rule
):
  flags = [
    *faults.RULES[rule][:-1],
    f'--train_steps={STEPS[rule]}',
    f'--data_dir={mnist_dir}',
  ]
  _, problem, calm = faults.run_with_faults(flags, 0, seed=0)
  assert not problem
  found, problem, report = faults.run_with_faults(
    flags, 4, seed=100 + list(STEPS).index(rule), keep=tmp_path / 'kept'
  )
  assert not problem, f'{problem}; logs in {tmp_path}/kept'
  # Where all is slow the others may have ended the training before the last of
  # them, or before who was lost was back: he then has no time of recovery.
  assert len(found) >= 2
  assert all(fault.is_survived for fault in found), found
  secs = [f.recover_secs for f in found if f.recover_secs is not None]
  assert secs, found
  # It takes a few seconds; ten are allowed by our own claim.
  assert max(secs) < 30, found
  # Two trainings of the same flags differ by some thousandths anyway.
  assert report['test_accuracy'] >= calm['test_accuracy'] - 0.01
