"""The examples for files that others have, on small ones of the same format."""

import re

import numpy as np
import pytest

from tests.support import programs


def train(name, folder, *words):
  problem = f'--problem=examples/{name}.py', f'--files={folder}'
  programs.run_forked('train', *problem, '--download_only')
  out, _ = programs.run_forked(
    *('train', *problem, '--batch_size=50', f'--logdir={folder}/run'), *words
  )
  return out


@pytest.mark.daily
@pytest.mark.slow
def test_logs_of_criteo(tmp_path):
  rng = np.random.default_rng(0)
  for day in range(3):
    lines = []
    for _ in range(1500):
      numbers = rng.integers(-1, 30, 13).astype(str)
      kinds = rng.zipf(1.5, 26) % 20
      clicked = rng.random() < (0.9 if kinds[0] % 2 else 0.1)
      texts = np.array([f'{kind:08x}' for kind in kinds])
      for fields in numbers, texts:
        fields[rng.random(len(fields)) < 0.1] = ''
      lines.append('\t'.join([str(int(clicked)), *numbers, *texts]))
    (tmp_path / f'day_{day}').write_text('\n'.join(lines) + '\n')
  out = train(
    *('criteo', tmp_path, '--last_day=2', '--epochs=4', '--optimizer=adam'),
    '--learning_rate=0.01',
  )
  assert float(re.search(r'^test auc +(\S+)', out, re.M)[1]) > 0.75


@pytest.mark.daily
@pytest.mark.slow
def test_ratings_of_movielens(tmp_path):
  rng = np.random.default_rng(0)
  users, films = rng.integers(1, 200, [2, 5000])
  ratings = np.clip(np.round(6 + np.sin(users) * 3 + np.cos(films) * 3), 1, 10)
  lines = [
    f'{user},{film},{rating / 2},{1_147_880_044 + i}\n'
    for i, (user, film, rating) in enumerate(
      zip(users, films, ratings, strict=True)
    )
  ]
  header = 'userId,movieId,rating,timestamp\n'
  (tmp_path / 'ratings.csv').write_text(header + ''.join(lines))
  out = train(
    *('movielens', tmp_path, '--epochs=10', '--optimizer=adam'),
    '--learning_rate=0.02',
  )
  # By the mean alone it would be 1.5.
  assert float(re.search(r'^test rmse +(\S+)', out, re.M)[1]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
  ('ratings', 'message'),
  [
    ('', "train.csv has no column 'movieId': it has none"),
    ('userId,movieId,rating\n', "load('train') gave a reader without an exam"),
  ],
)
def test_a_file_without_ratings_is_one_line(tmp_path, ratings, message):
  (tmp_path / 'ratings.csv').write_text(ratings)
  words = 'train', '--problem=examples/movielens.py', f'--files={tmp_path}'
  programs.run_forked(*words, '--download_only')
  _, errors = programs.run_forked(*words, code=2)
  assert message in errors.splitlines()[-1]
