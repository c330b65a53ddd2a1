"""image_folder: a folder a class."""

import base64
import re
import shutil
import struct

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.readers import image_folder


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('images')
  with tf.Graph().as_default(), tf.Session() as session:
    for name, colour, size in (
      ('cat/1.png', (255, 0, 0), (4, 4)),
      ('cat/2.jpg', (0, 255, 0), (8, 6)),
      ('dog/1.PNG', (0, 0, 255), (2, 2)),
    ):
      pixels = np.full([*size, 3], colour, np.uint8)
      is_png = name.lower().endswith('png')
      encode = tf.io.encode_png if is_png else tf.io.encode_jpeg
      path = folder / name
      path.parent.mkdir(exist_ok=True)
      path.write_bytes(session.run(encode(pixels)))
  (folder / 'dog' / 'notes.txt').write_text('none')
  (folder / 'dog' / 'more.jpg').mkdir()
  return folder


@pytest.mark.slow
def test_the_class_of_an_image_is_its_folder(folder):
  reader = image_folder.Reader(str(folder), size=(4, 4))
  assert reader.num_examples == 3
  assert reader.class_names == ['cat', 'dog']
  x, y = reader.read(np.array([2, 0, 1]))
  assert (x.shape, x.dtype, y.tolist()) == ((3, 4, 4, 3), np.uint8, [1, 0, 0])
  assert x[0, 1, 2].tolist() == [0, 0, 255]
  assert x[1, 1, 2].tolist() == [255, 0, 0]
  assert np.abs(x[2].astype(int) - [0, 255, 0]).max() < 4


@pytest.mark.slow
def test_colours_may_be_read_as_grey(folder):
  reader = image_folder.Reader(str(folder), size=(3, 5), channels=1)
  assert reader.read(np.array([0]))[0].shape == (1, 3, 5, 1)


@pytest.mark.slow
def test_a_file_that_is_no_image_is_named(folder, tmp_path):
  (tmp_path / 'cat').mkdir()
  (tmp_path / 'cat' / '1.png').write_bytes((folder / 'cat/1.png').read_bytes())
  (tmp_path / 'cat' / '2.png').write_text('none')
  reader = image_folder.Reader(str(tmp_path), size=(4, 4))
  assert reader.read(np.array([0]))[1].tolist() == [0]
  with pytest.raises(ValueError, match=r'cat/2\.png is not an image that'):
    reader.read(np.array([0, 1]))


def test_a_link_to_no_file_is_named_before_it_is_read(tmp_path):
  (tmp_path / 'cat').mkdir()
  link = tmp_path / 'cat' / '1.png'
  link.symlink_to(tmp_path / 'gone.png')
  with pytest.raises(ValueError, match=f'{link} is a link to no file'):
    image_folder.Reader(str(tmp_path), size=(4, 4))


@pytest.mark.parametrize('size', [(0, 8), (8, -1), (8,), 8, (8, 8.5), None])
def test_a_size_that_no_image_has_is_named(folder, size):
  message = re.escape(f'size={size!r}: expected (height, width), from 1 on')
  with pytest.raises(ValueError, match=f'^{message}$'):
    image_folder.Reader(str(folder), size)


@pytest.mark.slow
def test_an_image_in_another_class_is_another_example(folder, tmp_path):
  """As where a wrong label is corrected."""
  shutil.copytree(folder / 'cat', tmp_path / 'cat')
  (tmp_path / 'dog').mkdir()
  first = image_folder.Reader(str(tmp_path), (4, 4), classes=['cat', 'dog'])
  known = first.identify()
  (tmp_path / 'cat' / '2.jpg').rename(tmp_path / 'dog' / '2.jpg')
  second = image_folder.Reader(str(tmp_path), (4, 4), classes=['cat', 'dog'])
  assert second.identify() != known


@pytest.mark.slow
def test_a_folder_without_images_is_named(tmp_path):
  with pytest.raises(ValueError, match='has no images: expected one folder'):
    image_folder.Reader(str(tmp_path), size=(4, 4))
  with pytest.raises(ValueError, match=r'^/no/such: no such folder'):
    image_folder.Reader('/no/such', size=(4, 4))


@pytest.mark.slow
def test_classes_are_the_same_for_each_split(folder, tmp_path):
  (tmp_path / 'dog').symlink_to(folder / 'dog')
  (tmp_path / '.ipynb_checkpoints').mkdir()
  for hidden in ('.ipynb_checkpoints/1.png', '.hidden/1.png'):
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).write_text('none')
  told = image_folder.Reader(str(tmp_path), size=(4, 4))
  assert (told.class_names, told.num_examples) == (['dog'], 1)
  names = ['cat', 'dog']
  given = image_folder.Reader(str(tmp_path), size=(4, 4), classes=names)
  assert given.class_names == names
  assert given.read(np.array([0]))[1].tolist() == [1]


def make_bmp(pixels, table=b''):
  """Returns a BMP of rows of 4 bytes: BGR colours, or entries of a table."""
  height, begin = len(pixels), 54 + len(table)
  bits, width = (8, 4) if table else (24, 1)
  size = begin + 4 * height
  return (
    struct.pack('<2sIII', b'BM', size, 0, begin)
    + struct.pack('<IiiHHIIiiII', 40, width, height, 1, bits, *[0] * 6)
    + table
    + np.array(pixels, np.uint8).tobytes()
  )


@pytest.fixture
def read_bmp(tmp_path):
  def read(file, channels, name='1.bmp'):
    (tmp_path / 'cat').mkdir()
    (tmp_path / 'cat' / name).write_bytes(file)
    reader = image_folder.Reader(str(tmp_path), (2, 1), channels)
    return reader.read(np.zeros(1, np.int64))[0][0, :, 0].tolist()

  return read


@pytest.mark.slow
@pytest.mark.parametrize(
  'channels, found', [(3, [[10, 100, 200]] * 2), (1, [[84]] * 2)]
)
def test_a_bmp_is_read_in_colours_and_as_grey(read_bmp, channels, found):
  assert read_bmp(make_bmp([[200, 100, 10, 0]] * 2), channels) == found


def test_a_bmp_whose_colours_are_in_a_table_is_not_taken_for_grey(read_bmp):
  shades = np.repeat(np.arange(256, dtype=np.uint8), 4).tobytes()
  rows = [[7, 7, 7, 7]] * 2
  with pytest.raises(ValueError, match=r'1\.bmp is a BMP with a table of colo'):
    read_bmp(make_bmp(rows, shades[::-1]), 3)


def test_a_bmp_in_grey_is_read(read_bmp):
  shades = np.repeat(np.arange(256, dtype=np.uint8), 4).tobytes()
  assert read_bmp(make_bmp([[7, 7, 7, 7]] * 2, shades), 3) == [[7, 7, 7]] * 2


@pytest.mark.slow
def test_a_bmp_of_one_bit_a_pixel_is_told_what_to_become(read_bmp):
  file = bytearray(make_bmp([[0, 0, 0, 0]] * 2, bytes(8)))
  file[28] = 1
  with pytest.raises(
    ValueError, match=r'1\.bmp is not an .* kind than 8, 24 or'
  ):
    read_bmp(bytes(file), 3)


# Four inks (cyan, magenta, yellow, black), as print shops send; one colour.
PRINTED = (
  '|JeWT01iQ9Z(?NtWB>pF0095n07C!*0RaI40RjO50RjR70s;gB0s;a81q1{G1O^2L1_lKN1_lQ'
  'S2nGiU2L=WR3kV4c3JMAe1_%ob3knPg3JMDUzyK5o00IC31Va%3O%VWD5dcdO0RO}Q6#xMN000'
  '000000000000000RG|HJ?k5CH%H0000000000000000095m01gC008Ic{080P>KLAJ&@s58V|J'
  'e'
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'channels, found', [(3, [[200, 100, 50]] * 2), (1, [[124]] * 2)]
)
def test_a_jpeg_for_print_is_read_in_colours_and_as_grey(
  read_bmp, channels, found
):
  file = base64.b85decode(PRINTED)
  assert read_bmp(file, channels, '1.jpg') == found
