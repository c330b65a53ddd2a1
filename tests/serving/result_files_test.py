"""result_files: what a model gives, whole, in each kind of file."""

import csv
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.serving import result_files

PARTS = [result_files.Part('a.npy', 2), result_files.Part('b.npy', 1)]
RESULTS = {
  'score': np.array([0.1, 2, np.pi], np.float32),
  'box': np.arange(6).reshape(3, 2),
  'name': np.array([b'x', 'ö'.encode(), b''], object),
}


def test_a_csv_file_has_a_column_a_value(tmp_path):
  result_files.write(str(tmp_path / 'x.csv'), PARTS, RESULTS)
  with open(tmp_path / 'x.csv', newline='', encoding='utf-8') as file:
    rows = [*csv.reader(file)]
  assert rows[0] == ['file', 'index', 'score', 'box_0', 'box_1', 'name']
  assert rows[1] == ['a.npy', '0', '0.1', '0', '1', 'x']
  assert rows[2] == ['a.npy', '1', '2.0', '2', '3', 'ö']
  assert np.float32(rows[3][2]) == RESULTS['score'][2]


def test_json_lines_keep_the_shape(tmp_path):
  result_files.write(str(tmp_path / 'x.jsonl'), PARTS, RESULTS)
  lines = (tmp_path / 'x.jsonl').read_text().splitlines()
  assert json.loads(lines[1]) == {
    'file': 'a.npy',
    'index': 1,
    'score': 2.0,
    'box': [2, 3],
    'name': 'ö',
  }
  assert len(lines) == 3


def test_an_npz_has_the_arrays(tmp_path):
  result_files.write(str(tmp_path / 'x.npz'), PARTS, RESULTS)
  with np.load(tmp_path / 'x.npz', allow_pickle=False) as found:
    np.testing.assert_array_equal(found['score'], RESULTS['score'])
    np.testing.assert_array_equal(found['box'], RESULTS['box'])
    assert found['name'].tolist() == [b'x', 'ö'.encode(), b'']


def test_the_screen_has_the_first_of_each_file():
  parts = [result_files.Part('a.npy', 12), result_files.Part('b.png', 1, True)]
  results = {'p': np.linspace(0, 1, 13, dtype=np.float32)}
  lines = [
    *result_files.format_lines(parts, results, None, result_files.describe)
  ]
  assert lines[1] == 'a.npy[1]  p 0.08333'
  assert lines[10:] == [
    'a.npy: and 2 more, with --output=FILE.csv',
    'b.png  p 1',
  ]


def test_of_a_long_array_the_screen_has_six_values():
  assert result_files.describe('p', np.arange(7)) == 'p 0 1 2 3 4 5 ...'
  assert result_files.describe('p', np.arange(6)) == 'p 0 1 2 3 4 5'


def test_an_unknown_ending_is_refused(tmp_path):
  result_files.check(str(tmp_path / 'x.jsonl'))
  with pytest.raises(cli.UsageError, match='expected a name that ends in one '):
    result_files.check(str(tmp_path / 'x.txt'))


@pytest.mark.parametrize('ending', ['csv', 'jsonl', 'npz'])
def test_an_output_may_have_the_name_of_what_is_beside_it(tmp_path, ending):
  path = tmp_path / f'x.{ending}'
  results = {'file': np.arange(3), 'index': np.arange(3)}
  result_files.write(str(path), PARTS, results)
  if ending == 'npz':
    with np.load(path) as found:
      assert [*found] == ['output_file', 'output_index']
  else:
    assert path.read_text().count('output_index') in (1, 3)
    assert 'a.npy' in path.read_text()


def test_json_has_null_for_what_is_not_finite_and_text_for_complex(tmp_path):
  path = tmp_path / 'x.jsonl'
  results = {
    'a': np.array([[np.nan, 1], [np.inf, 2], [3, 4]], np.float32),
    'b': np.array([1 + 2j, 0, 1]),
  }
  result_files.write(str(path), PARTS, results)
  found = [
    json.loads(line, parse_constant=pytest.fail)
    for line in path.read_text().splitlines()
  ]
  assert [row['a'] for row in found] == [[None, 1], [None, 2], [3, 4]]
  assert found[0]['b'] == '(1+2j)'


def test_bfloat16_is_a_number_in_every_file(tmp_path):
  path = tmp_path / 'x.npz'
  values = np.array([0.5, 1, 2], tf.bfloat16.as_numpy_dtype)
  result_files.write(str(path), PARTS, {'a': values})
  with np.load(path) as found:
    assert found['a'].dtype == np.float32
    assert found['a'].tolist() == [0.5, 1, 2]
