"""benchmarks/revisions.py: ratios of pairs, and which program is run."""

import pytest

from tests.support.runner import import_benchmark


@pytest.fixture(scope='module')
def revisions():
  return import_benchmark('revisions')


def test_a_ratio_is_the_median_of_the_pairs(revisions):
  pairs = [((100, 2, 1), (110, 3, 1)), ((400, 4, 1), (200, 2, 1))]
  pairs.append(((1000, 1, 1), (1000, 1, 2)))
  assert revisions.make_rows('mlp', pairs) == [
    ['mlp', 'images/s', '400', '200', '1.000', '0.500 to 1.100'],
    ['mlp', 'first step', '2.00', '2.00', '1.000', '0.500 to 1.500'],
    ['mlp', 'end', '1.00', '1.00', '1.000', '1.000 to 2.000'],
  ]


@pytest.mark.daily
@pytest.mark.slow
def test_it_runs_the_program_of_the_other_checkout(
  revisions, tmp_path, monkeypatch
):
  (tmp_path / 'distmnist').mkdir()
  (tmp_path / 'distmnist' / 'launch.py').write_text('raise SystemExit(9)')
  monkeypatch.setitem(
    revisions.NETS, 'tiny', ['--model=softmax', '--train_steps=20']
  )
  rate, first_secs, end_secs = revisions.measure(
    revisions.processes.REPO, 'tiny', ['--log_secs=0']
  )
  assert rate > 0 and first_secs > 0 and end_secs > 0
  with pytest.raises(RuntimeError, match='launch ended with 9'):
    revisions.measure(tmp_path, 'tiny', [])
