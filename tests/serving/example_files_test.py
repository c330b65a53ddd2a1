"""example_files: files of examples become what a model takes, or one line."""

import json
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.serving import example_files

X = {'x': tf.TensorSpec([None, 2], tf.float32)}
MIXED = {
  'ids': tf.TensorSpec([None, 3], tf.int32),
  'name': tf.TensorSpec([None], tf.string),
  'new': tf.TensorSpec([None], tf.bool),
  'price': tf.TensorSpec([None], tf.float32),
}
IDS = {'ids': tf.TensorSpec([None], tf.uint8)}
PLANE = {'x': tf.TensorSpec([None, 2, 2], tf.float32)}


def read(folder, name, content, specs):
  path = folder / name
  if isinstance(content, str):
    path.write_text(content)
  elif isinstance(content, dict):
    with open(path, 'wb') as file:
      np.savez(file, **content)
  else:
    with open(path, 'wb') as file:
      np.save(file, content)
  return example_files.read(str(path), specs)


@pytest.mark.parametrize(
  'name, content',
  [
    ('x.npy', np.array([[1, 2], [3, 4.5]])),
    ('x.npz', {'x': np.array([[1, 2], [3, 4.5]], np.float16), 'y': [0, 1]}),
    ('x.jsonl', '[1, 2]\n\n[3, 4.5]\n'),
    ('x.jsonl', '{"x": [1, 2], "y": 0}\n{"x": [3, 4.5]}'),
    ('x.csv', 'x_0,y,x_1\n1,0,2\n3,1,4.5\n'),
    ('x.CSV', 'age,"in come"\r\n1,2\r\n3,4.5\r\n'),
  ],
)
def test_each_kind_of_file_gives_the_same_examples(tmp_path, name, content):
  found = read(tmp_path, name, content, X)
  assert [*found] == ['x'] and found['x'].dtype == np.float32
  assert found['x'].tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize(
  'name, content',
  [
    (
      'x.jsonl',
      '\n'.join(
        json.dumps({'ids': ids, 'name': name, 'new': new, 'price': price})
        for ids, name, new, price in (
          ([1, 2, 3], 'größe', True, 1),
          ([4, 5, 6], '', False, 2.5),
        )
      ),
    ),
    (
      'x.csv',
      'name,ids_0,ids_1,ids_2,new,price\ngröße,1,2,3,true,1\n"",4,5,6,0,2.5\n',
    ),
    (
      'x.npz',
      {
        'ids': np.array([[1, 2, 3], [4, 5, 6]]),
        'name': np.array(['größe', '']),
        'new': np.array([True, False]),
        'price': np.array([1, 2.5]),
      },
    ),
  ],
)
def test_inputs_of_several_types(tmp_path, name, content):
  found = read(tmp_path, name, content, MIXED)
  assert {n: a.tolist() for n, a in found.items()} == {
    'ids': [[1, 2, 3], [4, 5, 6]],
    'name': ['größe', ''],
    'new': [True, False],
    'price': [1, 2.5],
  }
  assert found['ids'].dtype == np.int32 and found['new'].dtype == bool


@pytest.mark.parametrize(
  'name, content, specs, text',
  [
    ('x.csv', 'x_0,x_1,x_1\n1,2,3\n', X, 'x_1'),
    ('x.txt', '1', X, '.txt'),
    ('x.npy', 'text', X, ''),
    ('x.npz', 'text', X, 'np.savez'),
    ('x.npy', np.zeros([3, 2]), MIXED, '4 inputs'),
    ('x.npy', np.zeros([3, 4]), X, 'x has the shape [3, 4]'),
    ('x.npy', np.zeros([0, 2]), X, 'no example'),
    ('x.npy', np.array([['a', 'b']]), X, 'x is str'),
    ('x.npz', {'z': [1]}, X, "'x', but z"),
    (
      'x.npz',
      {'ids': [[1, 2, 3]], 'name': ['a', 'b'], 'new': [True], 'price': [1.0]},
      MIXED,
      'ids has 1, name has 2, new has 1',
    ),
    ('x.jsonl', '[1, 2]\n[1', X, 'line 2'),
    ('x.jsonl', '[1, 2]\n[1, 2, 3]', X, 'line 2: x has the shape [1, 3]'),
    ('x.jsonl', '[1, [2]]', X, 'line 1'),
    ('x.jsonl', '{"y": 1}', X, "'x', but y"),
    ('x.jsonl', '3', MIXED, 'line 1'),
    ('x.jsonl', '["a", "b"]', X, 'line 1: x is str'),
    ('x.jsonl', '', X, 'no example'),
    ('x.jsonl', '256', IDS, 'line 1: ids'),
    ('x.jsonl', '1.5', IDS, 'line 1: ids'),
    ('x.csv', '', X, 'x_0, x_1'),
    ('x.csv', 'x_0,x_1\n', X, 'no example'),
    ('x.csv', 'x_0,x_1\n\n1', X, 'line 3 has 1 fields'),
    ('x.csv', 'a,b,c\n1,2,3', X, 'a, b, c: expected x_0, x_1'),
    ('x.csv', 'x_0,x_1\n1,a', X, 'example 0: x: '),
    ('x.csv', 'ids\n1\n1.5', IDS, 'example 1: ids: '),
    ('x.csv', 'ids\n1_2', IDS, 'example 0: ids: '),
    ('x.csv', 'ids\n300', IDS, 'ids has values'),
    ('x.csv', 'x\n1', PLANE, 'x has no place in columns'),
  ],
)
def test_what_does_not_fit_is_one_line(tmp_path, name, content, specs, text):
  with pytest.raises(cli.RunError) as caught:
    read(tmp_path, name, content, specs)
  assert str(caught.value).startswith(f'{tmp_path}/{name}: ')
  assert text in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
  with pytest.raises(cli.RunError, match='^cannot read .*no.csv: No such file'):
    example_files.read(str(tmp_path / 'no.csv'), X)


@pytest.mark.parametrize(
  'line, said',
  [
    ('"price": null', 'line 1: price is or has null'),
    ('"name": null', 'line 1: name is or has null'),
    ('"new": null', 'line 1: new is or has null'),
    ('"ids": [1, null, 3]', 'line 1: ids is or has null'),
    ('"price": {"a": 1}', 'line 1: price is or has an object'),
    (f'"ids": [1, 2, {10**30}]', 'line 1: ids has values that are no int32'),
    (f'"name": {10**30}', 'line 1: name is object, not text'),
  ],
)
def test_what_json_has_and_no_input_takes_is_named(tmp_path, line, said):
  good = '"ids": [1, 2, 3], "name": "a", "new": true, "price": 1.5'
  # Of two values under a key the later counts.
  with pytest.raises(cli.RunError, match=re.escape(said)):
    read(tmp_path, 'x.jsonl', f'{{{good}, {line}}}', MIXED)


def test_an_integer_too_large_for_any_input_is_named(tmp_path):
  specs = {'x': tf.TensorSpec([None], tf.int64)}
  with pytest.raises(cli.RunError, match='x has values that are no int64'):
    read(tmp_path, 'x.csv', f'x\n{10**30}\n', specs)


def test_a_field_of_a_csv_file_may_have_any_length(tmp_path):
  specs = {'name': tf.TensorSpec([None], tf.string)}
  text = 'x' * 200_000
  found = read(tmp_path, 'x.csv', f'name\n{text}\n', specs)
  assert found['name'].tolist() == [text]


def test_a_csv_file_without_a_header_loses_no_example(tmp_path):
  with pytest.raises(cli.RunError, match='the first line is 1,2: expected the'):
    read(tmp_path, 'x.csv', '1,2\n3,4\n', X)
  # As pandas numbers columns without a name.
  assert read(tmp_path, 'x.csv', '0,1\n3,4\n', X)['x'].tolist() == [[3, 4]]


@pytest.mark.parametrize(
  'name, text', [('x.csv', 'x_0,x_1\n3,4\n'), ('x.jsonl', '{"x": [3, 4]}\n')]
)
def test_the_mark_that_excel_begins_a_file_with_is_no_text(
  tmp_path, name, text
):
  assert read(tmp_path, name, '\ufeff' + text, X)['x'].tolist() == [[3, 4]]


def test_a_number_too_large_for_its_input_is_named(tmp_path):
  for name, text in (('x.csv', 'x_0,x_1\n{},1\n'), ('x.jsonl', '[{}, 1]\n')):
    with pytest.raises(cli.RunError, match='x has values that are no float32'):
      read(tmp_path, name, text.format('1e39'), X)
    with pytest.raises(cli.RunError, match=': -1e400 is too large; the mod'):
      read(tmp_path, name, text.format('-1e400'), X)
  found = read(tmp_path, 'x.csv', 'x_0,x_1\ninf,nan\n', X)['x']
  np.testing.assert_equal(found, np.array([[np.inf, np.nan]], np.float32))


def test_a_damaged_file_of_arrays_is_one_line(tmp_path):
  path = tmp_path / 'x.npz'
  np.savez_compressed(path, x=np.random.default_rng(0).random([100, 2]))
  packed = path.read_bytes()
  path.write_bytes(packed[:200] + b'\xff' * 20 + packed[220:])
  with pytest.raises(cli.RunError, match='x.npz: .+; the model takes'):
    example_files.read(str(path), X)


def test_the_content_of_a_file_of_arrays_says_what_it_is(tmp_path):
  x = np.array([[3, 4]])
  np.savez(tmp_path / 'x.npz', x=x)
  found = [
    read(tmp_path, 'one.npz', x, X),
    example_files.read(str((tmp_path / 'x.npz').rename(tmp_path / 'x.npy')), X),
  ]
  assert [arrays['x'].tolist() for arrays in found] == [[[3, 4]]] * 2


@pytest.mark.parametrize(
  'name, text, said',
  [
    ('x.jsonl', '[' * 9999, 'maximum recursion depth'),
    ('x.jsonl', '"\\ud800"', 'line 1: .+ surrogates not allowed'),
  ],
)
def test_what_is_no_example_is_one_line(tmp_path, name, text, said):
  specs = {'x': tf.TensorSpec([None], tf.string)}
  with pytest.raises(cli.RunError, match=said) as caught:
    read(tmp_path, name, text, specs)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'text, found', [('1e308', 1e308), ('-Infinity', -np.inf), ('inf', np.inf)]
)
def test_a_number_is_what_it_says(text, found):
  assert example_files.parse_float(text) == found


@pytest.mark.parametrize('text', ['1e309', '-1e400', '9' * 400])
def test_a_number_beyond_pythons_is_not_infinite(text):
  with pytest.raises(ValueError, match=f'^{text} is too large$'):
    example_files.parse_float(text)


def test_a_value_keeps_its_size_or_is_refused():
  spec = tf.TensorSpec([None], tf.int8)
  found = example_files.convert('x', np.array([1.0, -128.0]), spec)
  assert found.dtype == np.int8 and found.tolist() == [1, -128]
  for value in (1.5, 128.0):
    with pytest.raises(ValueError, match='^x has values that are no int8$'):
      example_files.convert('x', np.array([value]), spec)


def test_an_empty_field_is_a_number_if_one_is_given(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('age,income,city\n1,,\n,2.5,x\n')
  specs = {
    'age': tf.TensorSpec([None], tf.int64),
    'city': tf.TensorSpec([None], tf.string),
    'income': tf.TensorSpec([None], tf.float32),
  }
  found = example_files.read(str(path), specs, -1.0)
  assert {name: array.tolist() for name, array in found.items()} == {
    'age': [1, -1],
    'city': ['', 'x'],
    'income': [-1, 2.5],
  }
  with pytest.raises(
    cli.RunError, match=r'example 1: age: no value: --missing'
  ):
    example_files.read(str(path), specs)
