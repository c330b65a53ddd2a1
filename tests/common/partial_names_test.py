"""The names in a partial checkpoint, made and read again."""

from distmnist.common import partial_names


def test_names_say_what_they_are():
  base = partial_names.name_base('model.ckpt-7')
  touched = [
    name
    for begin in (900, 0)
    for name in partial_names.name_touched('a/rows/Adam', begin, begin + 900)
  ]
  names = ['w', base, *touched]
  assert partial_names.find_base(names) == 'model.ckpt-7'
  assert partial_names.find_ranges(names) == {
    'a/rows/Adam': [(0, 900), (900, 1800)]
  }
  assert [name for name in names if partial_names.is_plain(name)] == ['w']


def test_a_whole_checkpoint_has_no_base():
  assert partial_names.find_base(['w', 'a/rows']) is None
  assert partial_names.find_ranges(['w', 'a/rows']) == {}


def test_rows_are_named_as_tensorflow_names_them():
  assert partial_names.name_place([100, 3], 60, 10) == '100 3 60,10:-'
  assert partial_names.name_place([100], 0, 7) == '100 0,7'


def test_another_index_has_another_hash():
  found = {partial_names.compute_hash(x) for x in (b'', b'a', b'a')}
  assert len(found) == 2
