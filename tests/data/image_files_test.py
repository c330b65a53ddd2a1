"""image_files: IDX files and PNGs of all kinds, and what is neither."""

import gzip
import re
import struct

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import image_files
from tests.data.idx_test import pack

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (5, 4, 1), np.uint8)
COLOUR = RNG.integers(0, 256, (5, 4, 3), np.uint8)
OPAQUE = np.full((5, 4, 1), 255, np.uint8)


def encode_png(image):
  """Returns the bytes of a PNG; 1 to 4 channels, uint8 or uint16."""
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(tf.image.encode_png(image))


@pytest.fixture
def read(tmp_path):
  """read(content, channels=1) -> image_files.File of a 5 x 4 model."""

  def read_bytes(content, channels=1):
    path = tmp_path / 'file'
    path.write_bytes(content)
    return image_files.Reader((5, 4, channels)).read(str(path))

  return read_bytes


def check_refused(read, text, *args):
  with pytest.raises(cli.RunError) as caught:
    read(*args)
  assert re.fullmatch(text, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
  'image',
  [
    GREY,
    np.concatenate([GREY] * 3, axis=-1),
    np.concatenate([GREY, OPAQUE], axis=-1),
    np.concatenate([GREY] * 3 + [OPAQUE], axis=-1),
    GREY.astype(np.uint16) * 256 + 7,
  ],
  ids=['grey', 'rgb', 'grey with alpha', 'rgb with alpha', '16 bits'],
)
def test_a_grey_png_of_any_kind_is_taken_as_it_is(read, image):
  file = read(encode_png(image))
  assert file.is_png and file.images.dtype == np.uint8
  np.testing.assert_array_equal(file.images, GREY[np.newaxis])
  colour = read(encode_png(image), 3).images
  np.testing.assert_array_equal(colour, np.repeat(GREY[np.newaxis], 3, -1))


@pytest.fixture
def pillow():
  return pytest.importorskip('PIL.Image', reason='needs Pillow')


@pytest.mark.parametrize('bits, num_greys', [(1, 2), (2, 4), (4, 16), (8, 20)])
def test_a_png_with_a_palette_is_taken(read, pillow, tmp_path, bits, num_greys):
  greys = np.arange(20, dtype=np.uint8).reshape(5, 4) % num_greys
  greys *= 255 // (num_greys - 1)
  pillow.fromarray(greys).quantize(num_greys).save(tmp_path / 'palette.png')
  content = (tmp_path / 'palette.png').read_bytes()
  assert content[24:26] == bytes([bits, 3])
  np.testing.assert_array_equal(read(content).images[0, ..., 0], greys)


def test_a_png_of_one_bit_is_taken(read, pillow, tmp_path):
  black_and_white = np.where(GREY > 127, 255, 0).astype(np.uint8)
  pillow.fromarray(black_and_white[..., 0]).convert('1').save(
    tmp_path / 'bits.png'
  )
  content = (tmp_path / 'bits.png').read_bytes()
  assert content[24:26] == bytes([1, 0])
  np.testing.assert_array_equal(read(content).images[0], black_and_white)


@pytest.mark.parametrize('mode', ['L', '1', 'P'])
def test_a_colour_that_stands_for_transparent_is_refused(
  read, pillow, tmp_path, mode
):
  black_and_white = np.where(GREY > 127, 255, 0).astype(np.uint8)
  image = pillow.fromarray(black_and_white[..., 0]).convert(mode)
  image.save(tmp_path / 'key.png', transparency=0)
  check_refused(
    read,
    '.*: found transparent pixels, .*',
    (tmp_path / 'key.png').read_bytes(),
  )


def test_colours_are_turned_to_grey_or_kept(read):
  content = encode_png(COLOUR)
  grey = read(content).images[0, ..., 0]
  expected = COLOUR @ [0.299, 0.587, 0.114]
  np.testing.assert_allclose(grey, expected, atol=1)
  np.testing.assert_array_equal(read(content, 3).images[0], COLOUR)


@pytest.mark.parametrize('compress', [bytes, gzip.compress])
def test_an_idx_file_is_read_whatever_its_name(read, compress):
  images = np.stack([GREY[..., 0], GREY[..., 0] // 2])
  file = read(compress(pack(images)))
  assert not file.is_png
  np.testing.assert_array_equal(file.images, images[..., np.newaxis])
  file = read(compress(pack(COLOUR[np.newaxis])), 3)
  np.testing.assert_array_equal(file.images, COLOUR[np.newaxis])


def test_another_size_is_refused(read):
  text = (
    '.*/file: found {}, but the model takes {} \\(height x width\\): scale it, '
    'or give another --export_dir'
  )
  turned = GREY.transpose(1, 0, 2)
  grey = text.format('4 x 5', '5 x 4')
  check_refused(read, grey, encode_png(turned))
  check_refused(read, grey, pack(turned[np.newaxis, ..., 0]))
  check_refused(
    read,
    text.format('5 x 4 x 4', '5 x 4 x 3'),
    pack(np.zeros((2, 5, 4, 4), np.uint8)),
    3,
  )


def test_a_transparent_png_is_refused(read):
  clear = np.concatenate([GREY, OPAQUE], axis=-1)
  clear[3, 2, 1] = 254
  check_refused(
    read,
    '.*/file: found transparent pixels, expected none: put the image on a '
    'background',
    encode_png(clear),
  )


@pytest.mark.parametrize('harm', ['cut', 'flipped', 'start alone'])
def test_a_broken_png_is_refused(read, harm):
  content = bytearray(encode_png(GREY))
  middle = len(content) // 2
  content[middle] ^= harm == 'flipped'
  content = content[: {'cut': middle, 'start alone': 8}.get(harm)]
  check_refused(
    read,
    f'.*/file: found a broken PNG of {len(content)} bytes: give a PNG, or a '
    'whole IDX file',
    bytes(content),
  )


@pytest.mark.parametrize(
  'content, found',
  [
    (pack(GREY)[:-1], 'truncated: 35 bytes, expected 36 for .*'),
    (gzip.compress(b'text', mtime=0), 'magic number 0x74657874, expected .*'),
    (gzip.compress(pack(GREY), mtime=0)[:20], 'corrupt gzip .*'),
  ],
)
def test_a_broken_idx_file_is_refused(read, content, found):
  check_refused(
    read, f'.*/file: found {found}: give a PNG, or a whole IDX file', content
  )


@pytest.mark.parametrize('content', [b'', b'GIF89a 1', b'text'])
def test_what_is_neither_is_refused(read, content):
  check_refused(
    read,
    f'.*/file: found the first bytes {content!r}, expected a PNG or an IDX '
    'file, gzipped or not: convert it to PNG',
    content,
  )


def test_a_png_for_a_model_of_other_channels_is_refused(read):
  check_refused(
    read,
    '.*/file is a PNG, but the model takes images of 2 channels: give an IDX '
    'file of 4 dimensions',
    encode_png(GREY),
    2,
  )


def test_files_are_found_by_name_and_by_pattern(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  for name in ('b.png', 'a.png', '[c].png', 'd.idx'):
    (tmp_path / name).write_text('')
  found = image_files.find(
    ['~/d.idx', f'{tmp_path}/[c].png', f'{tmp_path}/?.png', '~/d.idx']
  )
  names = ['d.idx', '[c].png', 'a.png', 'b.png', 'd.idx']
  assert found == [str(tmp_path / name) for name in names]


def test_what_is_no_file_is_refused(tmp_path):
  for word in ('no.png', '*.jpg'):
    check_refused(
      image_files.find,
      rf'.*/{re.escape(word)} was not found: give files that exist',
      [f'{tmp_path}/{word}'],
    )
  check_refused(
    image_files.find,
    r'.* is a folder: give files, or a pattern such as .*/\*\.png',
    [str(tmp_path)],
  )
  check_refused(
    image_files.Reader((5, 4, 1)).read,
    'cannot read .*: Is a directory',
    str(tmp_path),
  )


def test_labels_are_one_an_image_and_below_the_number_of_classes(tmp_path):
  path = tmp_path / 'labels'
  path.write_bytes(pack(np.array([3, 0, 9], np.uint8)))
  labels = image_files.read_labels(str(path), 3, 10)
  assert (labels.dtype, labels.tolist()) == (np.int32, [3, 0, 9])
  advice = ': give the IDX file of their labels'
  check_refused(
    image_files.read_labels,
    f'.*: found 3 labels, expected 4, one for each image of --images{advice}',
    *(str(path), 4, 10),
  )
  check_refused(
    image_files.read_labels,
    f'.*: found label 9 at index 2, expected 0 to 8{advice}',
    *(str(path), 3, 9),
  )


def test_a_png_that_says_it_is_huge_is_refused_before_it_is_decoded(
  read, monkeypatch
):
  monkeypatch.setattr(
    image_files._PngDecoder, 'decode', lambda *_: pytest.fail('decoded')
  )
  content = bytearray(encode_png(GREY))
  content[16:24] = struct.pack('>2I', 60000, 50000)
  check_refused(
    read, '.*: found 50000 x 60000, but the model takes .*', content
  )
