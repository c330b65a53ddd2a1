"""Rows that are made under kills: each key ends with its own, and right.

The row of a key learns a number that belongs to the key alone: a row that two
keys share, one that a push has hit for another, or a key that has lost what it
had learnt without a checkpoint being behind it, would be far off at the end.
"""

import json
import re
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from distmnist.tables import key_hash, new_rows
from tests.support import programs
from tests.support.paths import REPO
from tests.support.runner import wait_for_step

NUM_KEYS, BATCH = 2000, 20
PROBLEM = f"""
import numpy as np
import tensorflow.compat.v1 as tf
from distmnist.nn import layers

def load(split):
  if split != 'validation':
    keys = np.array([f'user {{i}}' for i in range({NUM_KEYS})])
    y = np.random.default_rng(7).uniform(-1, 1, {NUM_KEYS})
    return keys, y.astype(np.float32)

def build(x, is_training):
  return layers.embedding(x, layers.NewRows({NUM_KEYS}), 1, 'user')[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
"""


def find_keys():
  with tf.Graph().as_default(), tf.Session() as session:
    keys = key_hash.find_fingerprints(
      tf.constant([f'user {i}' for i in range(NUM_KEYS)])
    )
    return session.run([keys, key_hash.find_buckets(keys, 60)])


def check(logdir):
  reader = tf.train.load_checkpoint(checkpoints.find_latest(str(logdir)))
  keys, rows = (reader.get_tensor(f'user/{x}') for x in ('keys', 'rows'))
  made = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
  place = {keys[i]: i for i in made}
  assert len(place) == len(made) == NUM_KEYS
  known, buckets = find_keys()
  at = np.array([place[key] for key in known])
  in_bucket = new_rows.NewRows(NUM_KEYS).rows_in_bucket
  assert (at // in_bucket == buckets).all()
  y = np.random.default_rng(7).uniform(-1, 1, NUM_KEYS)
  np.testing.assert_allclose(rows[at, 0], y, atol=1e-3)
  report = json.loads((logdir / 'report.json').read_text())
  assert report['tables'] == {
    'user': {'rows': NUM_KEYS, 'capacity': NUM_KEYS, 'keys_without_row': 0}
  }
  assert report['test_metrics']['loss'] < 1e-5
  return report


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
  ('victim', 'rule'),
  [
    ('ps', 'async_sgd'),
    ('ps', 'sync_sgd'),
    ('worker', 'sync_sgd'),
    ('chief', 'async_sgd'),
  ],
)
def test_who_is_killed_leaves_each_key_its_row(
  tasks, make_real_cluster, tmp_path, rule, victim
):
  (tmp_path / 'problem.py').write_text(PROBLEM)
  logdir = tmp_path / 'run'
  # It halves the error of a row of which a batch has one example.
  rate = BATCH / 4 * (2 if rule == 'sync_sgd' else 1)
  flags = (
    *(f'--problem={tmp_path}/problem.py', f'--logdir={logdir}'),
    *(f'--batch_size={BATCH}', f'--strategy={rule}', f'--learning_rate={rate}'),
    *('--epochs=14', '--log_secs=0', '--save_steps=20'),
  )
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  # In the first epoch: there are keys of which no checkpoint knows.
  for worker in workers:
    wait_for_step(worker, 30)
  group, index = {
    'ps': (ps, 1),
    'worker': (workers, 1),
    'chief': (workers, 0),
  }[victim]
  tasks.signal(group[index], signal.SIGKILL)
  assert tasks.wait(group[index]) == [-signal.SIGKILL]
  job = 'ps' if victim == 'ps' else 'worker'
  group[index] = cluster.start(job, index, *flags)
  assert tasks.wait(*workers, *ps, timeout_secs=400) == [0] * 4
  report = check(logdir)
  assert report['recoveries'] == (victim == 'ps')


def train(folder, problem, num_steps):
  """Writes a problem; returns flags to train it, with the rate as above."""
  path = folder / 'problem.py'
  path.write_text(problem)
  return (
    *(f'--problem={path}', f'--logdir={folder}/run', f'--batch_size={BATCH}'),
    *(f'--learning_rate={BATCH / 4}', f'--train_steps={num_steps}'),
  )


@pytest.mark.slow
def test_an_exported_model_serves_by_the_same_keys(tmp_path):
  flags = train(tmp_path, PROBLEM, 20 * NUM_KEYS // BATCH)
  programs.run_forked('train', *flags)
  out, _ = programs.run_forked('evaluate', f'--logdir={tmp_path}/run')
  assert float(re.search(r'test loss (\S+)', out)[1]) < 1e-9
  programs.run_forked(
    'export', f'--logdir={tmp_path}/run', f'--export_dir={tmp_path}/model'
  )
  with tf.Graph().as_default(), tf.Session() as session:
    found = tf.saved_model.loader.load(
      session, [tf.saved_model.SERVING], f'{tmp_path}/model'
    )
    signature = found.signature_def['serving_default']
    [given], [outputs] = signature.inputs.values(), signature.outputs.values()
    users = [f'user {i}' for i in range(NUM_KEYS)]
    served, unknown = (
      session.run(outputs.name, {given.name: keys})
      for keys in (users, ['nobody', 'user -1'])
    )
  y = np.random.default_rng(7).uniform(-1, 1, NUM_KEYS)
  np.testing.assert_allclose(served, y, atol=1e-3)
  assert unknown.tolist() == [0, 0]


@pytest.mark.slow
def test_a_checkpoint_of_another_table_is_one_line(tmp_path):
  programs.run_forked('train', *train(tmp_path, PROBLEM, 2))
  shape = 'has user/rows with shape [4560, 1], but the model has'
  for before, after, message in (
    (
      "f'user {i}'",
      'i',
      "the keys of the table 'user' in the checkpoint are text, but those of "
      'the model are whole numbers: give the model that it was trained with',
    ),
    (', 1, ', ', 2, ', shape),
    (
      'layers.NewRows(2000)',
      'layers.NewRows(90)',
      "has 4,560 rows in the table 'user', and the model ",
    ),
  ):
    assert before in PROBLEM
    flags = train(tmp_path, PROBLEM.replace(before, after), 4)
    _, errors = programs.run_forked('train', *flags, code=1)
    *_, last = errors.splitlines()
    assert last.startswith('distmnist.train: error: ')
    assert message in last


@pytest.mark.slow
def test_a_larger_table_goes_on_where_the_smaller_one_was(tmp_path):
  programs.run_forked('train', *train(tmp_path, PROBLEM, 2))
  larger = PROBLEM.replace('layers.NewRows(2000)', 'layers.NewRows(9000)')
  assert larger != PROBLEM
  said, _ = programs.run_forked('train', *train(tmp_path, larger, 4))
  assert "the table 'user' gets 13,920 rows instead of the 4,560 in" in said
  assert 'table user          80 rows, room for 9,000' in said


@pytest.mark.daily
@pytest.mark.slow
def test_the_page_s_table_begins_with_its_vectors(tmp_path):
  page = (REPO / 'docs' / 'sparse_tables.md').read_text()
  code = page.split('### Rows that are given')[1].split('```python\n')[1]
  code = code.split('```')[0].replace("np.load('", f"np.load('{tmp_path}/")
  words = np.array([f'{"ab"[i % 2]}{i}' for i in range(300)])
  vectors = np.random.default_rng(1).normal(size=[300, 8])
  np.save(tmp_path / 'words.npy', words)
  path = tmp_path / 'problem.py'
  path.write_text(code)
  flags = f'--problem={path}', '--learning_rate=0', '--batch_size=20'
  # Whatever the file has later is read by no run that has rows already.
  for name, more, text, value in (
    ('first', ['--train_steps=20'], code, vectors),
    ('first', ['--train_steps=40'], code, 0 * vectors),
    (
      'second',
      ['--train_steps=20', f'--warm_start={tmp_path}/first'],
      code.replace('=500', '=5000'),
      0 * vectors,
    ),
  ):
    path.write_text(text)
    np.save(tmp_path / 'vectors.npy', value)
    words_of_run = *flags, f'--logdir={tmp_path}/{name}', *more
    if len(more) == 1 and value is vectors:
      shape = '--num_ps=2', '--num_workers=2'
      programs.run_forked('launch', *shape, '--', *words_of_run)
    else:
      programs.run_forked('train', *words_of_run)
    found = read_rows(tmp_path / name, 'words')
    with tf.Graph().as_default(), tf.Session() as session:
      keys = session.run(key_hash.find_fingerprints(tf.constant(words)))
    assert found.keys() == set(keys.tolist())
    np.testing.assert_array_equal(
      [found[key] for key in keys], vectors.astype(np.float32)
    )


def read_rows(logdir, table):
  """Returns {key: row} of the last checkpoint."""
  reader = tf.train.load_checkpoint(checkpoints.find_latest(str(logdir)))
  keys, rows = (reader.get_tensor(f'{table}/{x}') for x in ('keys', 'rows'))
  at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
  return {keys[i]: rows[i] for i in at}
