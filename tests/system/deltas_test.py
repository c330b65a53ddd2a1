"""Deltas of a training that goes on: what the page says is what happens."""

import pytest

from distmnist.tables import new_rows
from tests.serving.delta_writer_test import assert_same, read_variables
from tests.support import programs
from tests.support.paths import REPO

NUM_KEYS, BATCH = 2000, 20
# More keys than rows: a new one takes the row of one long not seen.
PROBLEM = f"""
import numpy as np
from distmnist.nn import layers

def load(split):
  if split != 'validation':
    y = np.random.default_rng(7).uniform(-1, 1, {NUM_KEYS})
    return np.arange({NUM_KEYS}), y.astype(np.float32)

def build(x, is_training):
  rows = layers.NewRows(60, unseen_steps=3)
  return layers.dense(layers.embedding(x, rows, 4, 'user'), 1, 'out')[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
"""
PAGE = (REPO / 'docs' / 'using_a_model.md').read_text()


def find_rows(export_dir):
  """Returns {key: its row, a list} of a SavedModel."""
  found = read_variables(export_dir)
  return {
    key: row
    for key, row in zip(
      found['user/keys'].tolist(), found['user/rows'].tolist(), strict=True
    )
    if key >= new_rows.LOWEST_KEY
  }


@pytest.mark.daily
@pytest.mark.slow
def test_the_code_of_the_page_makes_the_later_export(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'problem.py').write_text(PROBLEM)
  run = f'--logdir={tmp_path}/logs/ads'

  def train(num_steps):
    programs.run_forked(
      *('train', f'--problem={tmp_path}/problem.py', f'--batch_size={BATCH}'),
      *(f'--train_steps={num_steps}', '--learning_rate=0.1', run),
    )

  def export(folder, *words):
    folder = f'--export_dir={tmp_path}/{folder}'
    out, _ = programs.run_forked('export', run, folder, *words)
    return out

  train(40)
  export('models/1')
  train(95)
  said = export('deltas/2', f'--since={tmp_path}/models/1')
  assert said.startswith('step 40 to 95  ')
  export('whole')
  store = find_rows('models/1')
  num_keys = len(store)
  names = {'store': store}
  for code in PAGE.split('```python\n')[1:]:
    exec(code.split('```')[0], names)
  whole = read_variables('whole')
  assert_same(read_variables('models/2'), whole)
  assert_same(names['arrays'], whole)
  assert store == find_rows('whole')
  gone = find_rows('models/1').keys() - store.keys()
  assert len(gone) > 20 and len(store) > num_keys
