"""A log that grows while it is read."""

from distmnist.spark import log_tail


def test_whole_lines_come_once_and_the_rest_in_the_end(tmp_path):
  path = tmp_path / 'log'
  tail = log_tail.LogTail(str(path))
  assert tail.read() is None
  path.write_text('')
  assert tail.read() is None
  path.write_text('one\ntwo\nthr')
  assert tail.read() == ['one', 'two']
  assert tail.read() is None
  path.write_text('one\ntwo\nthree\n\nfo')
  assert tail.read() == ['three', '']
  assert tail.read(is_end=True) == ['fo']
  assert tail.read(is_end=True) is None


def test_much_comes_in_pieces(tmp_path, monkeypatch):
  monkeypatch.setattr(log_tail, '_MAX_READ_BYTES', 8)
  path = tmp_path / 'log'
  path.write_bytes(b'ab\ncd\nef\n0123456789\n\xff')
  tail = log_tail.LogTail(str(path))
  found = []
  while (lines := tail.read(is_end=True)) is not None:
    found.append(lines)
  assert found == [['ab', 'cd'], ['ef'], ['01234567'], ['89'], ['\ufffd']]
