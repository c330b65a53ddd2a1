"""Weights, the step, a rate and a warm start, as their page has them."""

import json

import pytest

from tests.support import programs
from tests.support.paths import REPO


@pytest.mark.slow
def test_the_page_s_runs_do_what_it_says(tmp_path):
  page = (REPO / 'docs' / 'your_own_model.md').read_text()
  title = '## Weights, the step, a rate and a warm start\n'
  section = page.split(title)[1].split('\n## ')[0]
  (tmp_path / 'my_file.py').write_text(
    section.split('```python\n')[1].split('```')[0]
  )
  section = section.replace('my_file.py', f'{tmp_path}/my_file.py')
  section = section.replace('logs/', f'{tmp_path}/').replace("'", '')
  commands = section.replace('\\\n', '').split(' -m distmnist.launch ')[1:]
  for command in commands:
    # In one process: what several do is said by the tests of the rules.
    words = command.split('\n')[0].partition(' -- ')[2]
    words = *words.split(), '--train_steps=200'
    said = ''.join(programs.run_forked('train', *words))
  [promised] = [x for x in section.splitlines() if ' warm start from' in x]
  assert promised.strip() in said
  for name in 'a', 'b':
    report = json.loads((tmp_path / name / 'report.json').read_text())
    assert report['test_metrics']['loss'] < 0.6  # A guess has 1.1.
