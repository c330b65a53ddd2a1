"""csv: lines by their numbers, their types, and what is wrong with them."""

import gzip
import re

import numpy as np
import pytest

from distmnist.readers import csv


def write(path, text, newline='\n'):
  path.write_bytes(text.replace('\n', newline).encode())
  return str(path)


@pytest.mark.parametrize('newline', ['\n', '\r\n'])
@pytest.mark.parametrize('end', ['', '\n', '\n\n'])
def test_each_line_is_read_by_its_number(tmp_path, newline, end):
  write(tmp_path / 'a-0', 'n,r,t\n0,0.5,"a, b"\n1,1,ä' + end, newline)
  write(tmp_path / 'a-1', 'n,r,t\n2,-1e3,\n' + end, newline)
  reader = csv.Reader(f'{tmp_path}/a-*', x={'r': ['r', 'n'], 't': 't'}, y='n')
  assert reader.num_examples == 3
  assert reader.block_sizes.tolist() == [2, 1]
  x, y = reader.read(np.array([2, 0, 1]))
  assert y.dtype == np.int64 and y.tolist() == [2, 0, 1]
  assert x['r'].tolist() == [[-1000, 2], [0.5, 0], [1, 1]]
  assert x['t'].tolist() == [b'', b'a, b', 'ä'.encode()]


@pytest.mark.parametrize('delimiter', ['', '||', '"', '\n'])
def test_a_delimiter_is_one_character(tmp_path, delimiter):
  path = write(tmp_path / 'a', 'x,y\n1,2\n')
  message = f'delimiter={delimiter!r}: expected one character'
  with pytest.raises(ValueError, match=re.escape(message)):
    csv.Reader(path, 'x', 'y', delimiter=delimiter)


def test_files_may_have_no_header_and_other_delimiters(tmp_path):
  write(tmp_path / 'a-0', '1\t"a"\t\n2\tb,c\t0.5\n\n')
  write(tmp_path / 'a-1', '')
  write(tmp_path / 'a-2', '3\td\t4')
  settings = {'delimiter': '\t', 'names': ['n', 't', 'r']}
  paths, y = f'{tmp_path}/a-*', ('n', 'r')
  reader = csv.Reader(paths, 't', y, missing=-1, **settings)
  assert reader.num_examples == 3
  x, (n, r) = reader.read(np.arange(3))
  assert x.tolist() == [b'a', b'b,c', b'd'] and n.tolist() == [1, 2, 3]
  assert r.tolist() == [-1, 0.5, 4] and r.dtype == np.float32
  _, (_, r) = csv.Reader(paths, 't', y, **settings).read(np.arange(3))
  assert r.tolist() == [b'', b'0.5', b'4']
  write(tmp_path / 'a-2', '3\td\t4\t5')
  with pytest.raises(ValueError, match='a-2:1 has 4 fields: expected 3'):
    csv.Reader(f'{tmp_path}/a-2', 't', 'n', **settings).read(np.arange(1))


@pytest.mark.parametrize(
  'text, message',
  [
    ('n,t\n1,x\n2\n', ':3 has 1 fields: expected 2, each in one line'),
    ('n,t\n1,"x\ny,z"\n', ':2: a quoted text does not end in its line'),
    ('n,t\n1,x\ry\n2,z\n', ':2: new-line character seen in unquoted field'),
    ('n,t\r1,x\r', 'a:1: new-line character seen in unquoted field'),
    ('n,"t\nu"\n1,x\n', 'a:1: a quoted text does not end in its line'),
    ('m,t\n1,x\n', " has no column 'n': it has m, t"),
    ('', " has no column 'n': it has none"),
  ],
)
def test_what_is_no_table_is_named(tmp_path, text, message):
  path = write(tmp_path / 'a', text)
  with pytest.raises(ValueError, match=re.escape(message)):
    csv.Reader(path, x='n', y='t').read(np.array([0, 1]))


@pytest.mark.parametrize(
  'first, wrong, kind',
  [('1', '1.5', 'int64'), ('1.5', 'x', 'float32'), ('1.5', '1e39', 'float32')],
)
def test_a_value_of_another_type_than_the_first_lines_is_named(
  tmp_path, first, wrong, kind, monkeypatch
):
  monkeypatch.setattr(csv, '_NUM_TOLD', 2)
  path = write(tmp_path / 'a', f'n\n{first}\n{first}\n{first}\n{wrong}\n')
  reader = csv.Reader(path, x='n', y='n')
  assert reader.read(np.array([0]))[0].tolist() == [float(first)]
  message = f'{path}:5: n is {wrong!r}: expected {kind}, as in the first lines'
  with pytest.raises(ValueError, match=re.escape(message)):
    reader.read(np.array([0, 3]))


def test_files_have_the_same_columns(tmp_path):
  write(tmp_path / 'a-0', 'm,n\n1,2\n')
  write(tmp_path / 'a-1', 'n,m\n1,2\n')
  with pytest.raises(ValueError, match='a-1 has different columns from .*a-0'):
    csv.Reader(f'{tmp_path}/a-*', x='m', y='n')


def test_what_the_first_lines_do_not_tell_is_given(tmp_path):
  path = write(tmp_path / 'a', 'id,price\n1,2\n,3\n')
  types = {'price': 'float32', 'id': 'int64'}
  # Empty fields may be far below the first lines.
  reader = csv.Reader(path, 'price', 'id', missing=-1.0).with_types(types)
  x, y = reader.read(np.arange(2))
  assert (x.dtype, y.dtype, y.tolist()) == (np.float32, np.int64, [1, -1])
  reader = csv.Reader(path, 'price', 'id').with_types({'price': 'text'})
  assert reader.read(np.arange(1))[0].tolist() == [b'2']
  for wrong in ({'price': 'str'}, {'rice': 'text'}):
    with pytest.raises(ValueError, match='one of int64, float32, text for one'):
      csv.Reader(path, 'price', 'id').with_types(wrong)


@pytest.mark.parametrize('names', [None, ['n', 't']])
def test_the_mark_that_excel_begins_a_file_with_is_no_text(tmp_path, names):
  header = '' if names else 'n,t\n'
  path = write(tmp_path / 'a', f'\ufeff{header}1,a\n2,b\n')
  x, y = csv.Reader(path, 'n', 't', names=names).read(np.arange(2))
  assert (x.tolist(), y.tolist()) == ([1, 2], [b'a', b'b'])


def test_text_may_have_any_bytes_and_any_length(tmp_path):
  """Those of Latin-1 would all become one character, and the words alike."""
  words = [
    'Zürich'.encode('latin-1'),
    'Zörich'.encode('latin-1'),
    b'x' * 200000,
  ]
  lines = b''.join(b'%d,%s\n' % (n, word) for n, word in enumerate(words))
  (tmp_path / 'a').write_bytes(b'n,t\n' + lines)
  reader = csv.Reader(str(tmp_path / 'a'), x='t', y='n')
  x, _ = reader.read(np.arange(3))
  assert x.tolist() == words


def test_a_file_without_a_byte_has_no_lines(tmp_path):
  for name, text in (('a-0', ''), ('a-1', 'n,t\n1,x\n'), ('a-2', '')):
    write(tmp_path / name, text)
  reader = csv.Reader(f'{tmp_path}/a-*', x='n', y='t')
  assert reader.num_examples == 1
  assert reader.read(np.arange(1))[0].tolist() == [1]


@pytest.mark.parametrize('names', [None, ['n', 't']])
def test_a_file_that_is_no_text_is_named(tmp_path, names):
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(b'n,t\n1,x\n'))
  with pytest.raises(ValueError, match='a is compressed: expected CSV files'):
    csv.Reader(str(path), x='n', y='t', names=names)
  path.write_bytes('n,t\n1,x\n'.encode('utf-16'))
  if not names:
    with pytest.raises(ValueError, match='first line of .*a is not in UTF-8'):
      csv.Reader(str(path), x='n', y='t')


def test_whole_numbers_that_int64_cannot_hold_are_not_rounded(tmp_path):
  path = write(tmp_path / 'a', f'id,y\n{2**64 - 1},1\n{2**64 - 2},0\n')
  message = f'{path}: id has whole numbers that int64 cannot hold'
  with pytest.raises(ValueError, match=f'^{message}, such as {2**64 - 1}: '):
    csv.Reader(path, 'id', 'y').read(np.arange(2))
  reader = csv.Reader(path, 'id', 'y').with_types({'id': 'text'})
  assert reader.read(np.array([1]))[0].tolist() == [b'%d' % (2**64 - 2)]


def test_infinity_is_a_number_where_it_is_written(tmp_path):
  path = write(tmp_path / 'a', 'n\n-inf\nInfinity\n0.5\n')
  found = csv.Reader(path, 'n', 'n').read(np.arange(3))[0]
  assert found.tolist() == [-np.inf, np.inf, 0.5]
  path = write(tmp_path / 'b', 'n\n1e400\n')
  reader = csv.Reader(path, 'n', 'n').with_types({'n': 'float32'})
  with pytest.raises(ValueError, match="b:2: n is '1e400': expected float32"):
    reader.read(np.arange(1))


def test_a_line_is_numbered_as_editors_do(tmp_path):
  path = write(tmp_path / 'a', 'n,t\n\n1,x\n\n2\n')
  with pytest.raises(ValueError, match='a:5 has 1 fields'):
    csv.Reader(path, 'n', 't').read(np.arange(2))


def test_a_text_of_digits_and_underscores_is_no_number(tmp_path):
  """To Python both are 123: two ids would be one."""
  path = write(tmp_path / 'a', 'id,n\n12_3,1\n1_23,2\n')
  reader = csv.Reader(path, 'id', 'n')
  assert reader.read(np.arange(2))[0].tolist() == [b'12_3', b'1_23']
  reader = csv.Reader(path, 'id', 'n').with_types({'id': 'int64'})
  with pytest.raises(ValueError, match="a:2: id is '12_3': expected int64"):
    reader.read(np.arange(2))


def test_the_lines_that_are_not_blank_are_found(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'\xef\xbb\xbfn,t\r\n1,x\r\n\r\n\n2,y')
  offsets, lengths = csv.find_lines(str(path), 1)
  assert offsets.tolist() == [8, 16] and lengths.tolist() == [4, 3]
  offsets, _ = csv.find_lines(str(path), 0)
  assert offsets.tolist() == [3, 8, 16]
  assert csv.read_header(str(path), ',') == ['n', 't']
  numbers = [csv.find_line_number(path, offset) for offset in (3, 8, 16)]
  assert numbers == [1, 2, 5]


@pytest.mark.parametrize(
  'line, fields',
  [
    (b'1,"a, ""b""",\r', ['1', 'a, "b"', '']),
    (b'1;"2,3"', ['1;"2', '3"']),
    (b'a b', ['a b']),
  ],
)
def test_a_line_is_split_into_its_fields(line, fields):
  assert csv.split_line(line, ',') == fields
