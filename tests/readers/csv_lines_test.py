"""csv_lines: where the lines of a file are, and what is in them."""

import pytest

from distmnist.readers import csv_lines


def test_the_lines_that_are_not_blank_are_found(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'\xef\xbb\xbfn,t\r\n1,x\r\n\r\n\n2,y')
  offsets, lengths = csv_lines.find_places(str(path), 1)
  assert offsets.tolist() == [8, 16] and lengths.tolist() == [4, 3]
  offsets, _ = csv_lines.find_places(str(path), 0)
  assert offsets.tolist() == [3, 8, 16]
  assert csv_lines.read_header(str(path), ',') == ['n', 't']
  numbers = [csv_lines.find_number(path, offset) for offset in (3, 8, 16)]
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
  assert csv_lines.split(line, ',') == fields
