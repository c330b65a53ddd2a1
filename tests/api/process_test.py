"""process: what its callers rely on is tested by training_test and others."""

from distmnist.api import process


def test_the_sentence_of_the_task_that_failed_is_found():
  lines = ['step 1', 'distmnist.launch: error: worker 0 failed: why', 'log: x']
  assert process._find_sentence(lines, 1) == 'worker 0 failed: why'
  assert process._find_sentence(['step 1'], 137) == (
    'the training has ended with exit code 137'
  )
  said = process._find_sentence(['python -m distmnist.train'], 0)
  assert said.startswith('nothing was trained, and there is no report: dry_run')
