"""The list of faults: done in parts, each drawn from its seed and number."""

import pytest

from tests.support.runner import import_benchmark

faults = import_benchmark('faults')


def test_what_a_file_of_results_has_is_not_done_again(tmp_path, monkeypatch):
  done = []

  def run(rule, given, extra, keep):
    del extra, keep
    done.append((rule, given[0].task))
    given[0].is_survived, given[0].recover_secs = True, float(len(done))
    return '', None

  monkeypatch.setattr(faults.fault_training, 'run_with_faults', run)
  words = ['--seed=3', f'--results={tmp_path}/done.jsonl', '--faults']
  first = list(faults.measure(*faults.parse_args([*words, '2'])))
  both = list(faults.measure(*faults.parse_args([*words, '4'])))
  assert len(done) == 4 and both[:2] == first
  assert [fault.recover_secs for _, fault in both] == [1, 2, 3, 4]
  with pytest.raises(SystemExit, match='give the flags it was made with'):
    list(faults.measure(*faults.parse_args([*words, '4', '--seed=4'])))
