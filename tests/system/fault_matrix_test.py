"""Cells of the matrix of faults: a condition that a task meets in a phase.

The driver is that of benchmarks/fault_matrix.py, which makes the table in
docs/measured.md; here are five of its cells, each of another phase, condition
and rule.
"""

import pytest

from tests.support.runner import import_benchmark

matrix = import_benchmark('fault_matrix')
phases = import_benchmark('lib.fault_phases')

CELLS = [
  ('own loop', 'start', 'disk full', 'worker 0'),
  ('async_sgd', 'first step', 'EIO once', 'worker 0'),
  ('ring_allreduce', 'steady', 'killed', 'worker 1'),
  ('sync_sgd', 'last step', 'fork refused', 'ps 1'),
  ('easgd', 'report', 'suspended', 'ps 0'),
]


# Tasks that are suspended: faults_test.py.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize('cell', CELLS, ids=[' '.join(x[1:3]) for x in CELLS])
def test_a_run_goes_on_or_ends_well(tmp_path, cell):
  found = matrix.do_cell(0, 0, phases.Cell(*cell), tmp_path)
  if isinstance(found, str):
    pytest.skip(found)
  assert found.broken == [], f'{found}; logs in {tmp_path}'
