"""consistency: what the tasks of a run must have in common."""

from distmnist import consistency


def test_a_changed_line_is_other_code(tmp_path):
  (tmp_path / 'rules').mkdir()
  path = tmp_path / 'rules' / 'sgd.py'
  path.write_text('RATE = 0.1')
  (tmp_path / 'notes.txt').write_text('not code')
  hash_code = consistency.hash_code.__wrapped__
  before = hash_code(tmp_path)
  assert len(before) == 12
  (tmp_path / 'notes.txt').write_text('still not')
  assert hash_code(tmp_path) == before
  path.write_text('RATE = 0.2')
  assert hash_code(tmp_path) != before


def test_other_code_and_another_tensorflow_are_differences():
  mine = {'code': 'abc', 'tensorflow': '2.21.0', 'seed': 1}
  theirs = {'code': 'def', 'tensorflow': '2.20.0'}
  program = [
    'code (a hash of its .py files) def there but '
    'code (a hash of its .py files) abc here',
    'TensorFlow 2.20.0 there but TensorFlow 2.21.0 here',
  ]
  assert consistency.find_differences(mine, theirs, is_ps=True) == program
  [code, seed, version] = consistency.find_differences(
    mine, theirs, is_ps=False
  )
  assert [code, version] == program
  assert seed == '--seed=(not given) there but --seed=1 here'
