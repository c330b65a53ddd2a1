"""csv: lines by their numbers, their types, and what is wrong with them."""

import gzip
import re

import numpy as np
import pytest

from distmnist.readers import csv

pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed')


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
  message = f'{path}:5: n is {wrong!r}: expected {kind}, as in the first lines'
  with pytest.raises(ValueError, match=re.escape(message)):
    reader.read(np.array([0]))


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


@pytest.mark.slow
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
  with pytest.raises(ValueError, match='a is compressed'):
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


def test_a_whole_number_is_decimal(tmp_path):
  path = write(tmp_path / 'a', 'n,t\n1,0x1\n0x10,0x2\n')
  x, y = csv.Reader(path, 'n', 't').read(np.arange(2))
  assert x.tolist() == [b'1', b'0x10'] and y.tolist() == [b'0x1', b'0x2']
  reader = csv.Reader(path, 'n', 't').with_types({'n': 'int64'})
  with pytest.raises(ValueError, match="a:3: n is '0x10': expected int64"):
    reader.read(np.arange(1))


def test_blank_lines_are_no_rows(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'\xef\xbb\xbfn,t\r\n1,x\r\n\r\n\n2,y')
  reader = csv.Reader(str(path), 'n', 't')
  assert reader.num_examples == 2
  assert reader.read(np.arange(2))[0].tolist() == [1, 2]
  path.write_bytes(path.read_bytes() + b'z,\n')
  with pytest.raises(ValueError, match='a:5 has 3 fields'):
    csv.Reader(str(path), 'n', 't').read(np.arange(2))


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


def _gzip_in_two(content):
  """As `cat a.gz b.gz` makes it, and bgzip."""
  return gzip.compress(content[:9]) + gzip.compress(content[9:])


def _pack(name):
  return lambda content: pa.compress(content, name, asbytes=True)


@pytest.mark.parametrize(
  'ending, pack',
  [('.gz', gzip.compress), ('.gz', _gzip_in_two), ('.zst', _pack('zstd'))],
)
def test_the_name_of_a_file_says_how_it_is_compressed(tmp_path, ending, pack):
  text = 'n,t\n' + ''.join(f'{n},text {n}\n' for n in range(9))
  path = tmp_path / f'a.csv{ending}'
  path.write_bytes(pack(text.encode()))
  x, y = csv.Reader(path, 'n', 't').read(np.array([8, 0]))
  assert (x.tolist(), y.tolist()) == ([8, 0], [b'text 8', b'text 0'])


@pytest.mark.slow
@pytest.mark.parametrize('damage', ['cut', 'flipped', 'raw'])
def test_a_file_that_cannot_be_unpacked_is_named(tmp_path, damage):
  text = ''.join(f'{n},{hash(n * n)}\n' for n in range(50000)).encode()
  packed = gzip.compress(b'n,t\n' + text)
  half = len(packed) // 2
  path = tmp_path / 'a.gz'
  path.write_bytes(
    {
      'cut': packed[:half],
      'flipped': packed[:half] + bytes(9) + packed[half + 9 :],
      'raw': text,
    }[damage]
  )
  with pytest.raises(ValueError, match=f'^{path} cannot be unpacked'):
    csv.Reader(path, 'n', 't').read(np.arange(1))


# What Arrow and Python might read differently.
_FIELDS = (
  *('1', '-2', '+3', ' 4 ', '', '0.5', '-0', '1e5', 'nan', 'inf', '1e39'),
  *('1e400', 'x', '"a"', '"a,b"', '"a""b"', '"a\nb"', '"', 'a"b', '"a"b'),
  *('"a" "b"', ' ', '\t', '\xe9', '\r', '"\r"', '007', '1_2', '1.0', '"1"'),
  *(
    '0x10',
    '0X1F',
    '9223372036854775807',
    '9223372036854775808',
    '0.1234567890123456789',
  ),
)


@pytest.mark.slow
def test_what_arrow_parses_is_what_python_would(tmp_path):
  rng = np.random.default_rng(0)
  num_by_arrow = 0
  for _ in range(1000):
    pool = rng.choice(_FIELDS, 4)
    rows = [','.join(rng.choice(pool, 2)) for _ in range(rng.integers(1, 4))]
    part = '\n'.join([*rows, '']).encode()
    write(tmp_path / 'a', 'm,n\n1,2\n')
    types = rng.choice(['int64', 'float32', 'text'], 2).tolist()
    missing = rng.choice([None, -1, 0.5])
    reader = csv.Reader(tmp_path / 'a', 'm', 'n', missing=missing)
    reader.with_types(dict(zip('mn', types, strict=True)))
    if found := reader._parse(part):
      num_by_arrow += 1
      expected = reader._parse_by_line('a', 1, part)
      # nan is not equal to nan.
      assert repr(found.to_pydict()) == repr(expected.to_pydict()), part
      assert found.schema == expected.schema
  assert num_by_arrow > 150


@pytest.mark.slow
def test_a_file_is_read_in_parts(tmp_path, monkeypatch):
  monkeypatch.setattr(csv, '_PART_BYTES', 16)
  lines = [f'{n},{"x" * (n % 40)}\n' for n in range(600)]
  path = write(tmp_path / 'a', 'n,t\n' + ''.join(lines))
  reader = csv.Reader(path, 'n', 't')
  assert reader.block_sizes.tolist() == [256, 256, 88]
  x, y = reader.read(np.arange(600)[::-1])
  assert x.tolist() == [*range(600)][::-1]
  assert y[0] == b'x' * (599 % 40)
  write(tmp_path / 'a', 'n,t\n' + ''.join(lines) + '600\n')
  with pytest.raises(ValueError, match='a:602 has 1 fields'):
    csv.Reader(path, 'n', 't').read(np.arange(1))


def test_a_file_that_has_grown_is_read_anew_by_the_next(tmp_path):
  path = write(tmp_path / 'a', 'n\n1\n')
  reader = csv.Reader(path, 'n', 'n')
  assert reader.num_examples == 1
  with open(path, 'a', encoding='utf-8') as file:
    file.write('2\n')
  assert reader.read(np.arange(1))[0].tolist() == [1]
  assert csv.Reader(path, 'n', 'n').num_examples == 2
  assert csv.Reader(path, 'n', 'n').with_types({'n': 'text'}).num_examples == 2


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch):
  path = write(tmp_path / 'a', 'n\n1\n2\n')
  reader, parse = csv.Reader(path, 'n', 'n'), csv.Reader._parse

  def parse_late(self, part):
    write(tmp_path / 'a', 'n\n3\n4\n5\n')
    return parse(self, part)

  monkeypatch.setattr(csv.Reader, '_parse', parse_late)
  with pytest.raises(ValueError, match='a has changed since'):
    reader.read(np.arange(1))


def test_a_column_may_be_the_weights(tmp_path):
  path = write(tmp_path / 'a', 'n,y,w\n1,0,2\n3,1,0.5\n')
  reader = csv.Reader(path, x='n', y='y', w='w')
  x, y, w = reader.read(np.array([1, 0]))
  assert (x.tolist(), y.tolist(), w.tolist()) == ([3, 1], [1, 0], [0.5, 2])
  with pytest.raises(ValueError, match="has no column 'v': it has n, y, w"):
    csv.Reader(path, x='n', y='y', w='v')


@pytest.mark.parametrize('value', ['', '-1', 'nan', '-inf', '1e39', 'a'])
@pytest.mark.parametrize('line', [2, 3, 1500])
def test_a_weight_that_is_none_is_named(tmp_path, value, line):
  lines = ['1,0.5'] * 1600
  lines[line - 2] = f'1,{value}'
  path = write(tmp_path / 'a', '\n'.join(['n,w', *lines]))
  reader = csv.Reader(path, x='n', y='n', w='w', missing=-1)
  with pytest.raises(ValueError, match=f'a:{line}: .*w is {value!r}'):
    reader.read(np.arange(1))


def test_an_empty_field_is_missing_in_other_columns_than_the_weights(tmp_path):
  path = write(tmp_path / 'a', 'n,y,w\n,0,2\n3,,0\n')
  reader = csv.Reader(path, x='n', y='y', w='w', missing=-1)
  x, y, w = reader.read(np.arange(2))
  assert (x.tolist(), y.tolist(), w.tolist()) == ([-1, 3], [0, -1], [2, 0])
