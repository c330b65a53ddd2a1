"""Tables of text, from examples that were fed to a model that is served."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import array_folder
from distmnist.logdir import checkpoints
from distmnist.serving import saved_model
from distmnist.tables import key_hash
from tests.support import programs


def draw(num_examples, seed):
  """Returns (x, y): text ids, some not of ASCII, and who clicked."""
  draw = np.random.default_rng(seed)
  users, ads = draw.integers(0, 30, [2, num_examples])
  x = {
    'user': np.array([f'müller-{n}' for n in users]),
    'ad': np.array([f'ad {n}' for n in ads]),
  }
  return x, (users % 3 == ads % 3).astype(np.int32)


@pytest.mark.daily
@pytest.mark.slow
def test_a_fed_table_of_text_serves_what_was_trained(tmp_path):
  (tmp_path / 'fed').mkdir()
  test_x, test_y = draw(200, seed=1)
  # Text that no training has seen is looked up, too.
  test_x['user'][:3] = ['nobody', '', 'müller-300']
  splits = {'train': draw(2000, seed=0), 'test': (test_x, test_y)}
  array_folder.write(tmp_path / 'fed', splits)
  programs.run_forked(
    'launch',
    *('--num_ps=2', '--num_workers=2', '--'),
    *('--problem=examples/ranking.py', f'--fed_dir={tmp_path}/fed'),
    *('--optimizer=adagrad', '--learning_rate=0.5', '--epochs=20'),
    f'--logdir={tmp_path}/run',
  )
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  # What only this task was given is no part of the run.
  assert 'fed_dir' not in (tmp_path / 'run' / 'train.flags').read_text()
  programs.run_forked(
    'export',
    *(f'--logdir={tmp_path}/run', f'--export_dir={tmp_path}/model'),
    f'--fed_dir={tmp_path}/fed',
  )
  model = saved_model.Model(str(tmp_path / 'model'))
  fed = {
    name: np.array([word.encode() for word in text], object)
    for name, text in test_x.items()
  }
  served = model.run(fed)['outputs']
  np.testing.assert_allclose(
    served, compute(tmp_path / 'run', test_x), rtol=1e-5, atol=1e-6
  )
  losses = np.logaddexp(0, served) - test_y * served
  assert losses.mean() == pytest.approx(report['test_metrics']['loss'], 1e-4)
  assert losses.mean() < np.log(2) - 0.05  # It has learnt.


def compute(logdir, x):
  """Returns the scores [n] by the rows of the last checkpoint, in NumPy."""
  reader = tf.train.load_checkpoint(checkpoints.list_checkpoints(logdir)[0])
  rows = []
  for name, text in x.items():
    with tf.Graph().as_default(), tf.Session() as session:
      keys = session.run(key_hash.find_fingerprints(tf.constant(text)))
    table = reader.get_tensor(f'{name}/rows')
    place_of = {
      key: place for place, key in enumerate(reader.get_tensor(f'{name}/keys'))
    }
    unknown = np.zeros(table.shape[1], table.dtype)
    rows.append(
      np.array([table[place_of[k]] if k in place_of else unknown for k in keys])
    )
  return (rows[0] * rows[1]).sum(1)
