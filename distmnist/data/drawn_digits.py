"""Digits drawn by NumPy from a seed, by many hands.

A digit is a few strokes, bent by one of 24 hands; each image rotates, shears,
scales, shifts and waves it, with a pen and an ink of its own, under a blot and
noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SIZE = 28  # Pixels, height and width, of a digit as it is drawn.
_DIGITS = 10
_CHUNK = 512  # Images drawn at once: what fits a core's cache.
_HANDS = 24  # Ways of writing a digit, each with a distance map of its own.
_SAMPLES = 2  # Of a distance map per pixel, along each axis.
_REACH = 12  # Pixels from a distance map's centre to its border.
_HALF_DIGIT = (6, 9)  # Pixels, width and height, before it is scaled.


def draw(
  num_images: int,
  seed: int | Sequence[int],
  size: int = _SIZE,
  channels: int = 1,
  num_classes: int = _DIGITS,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws labelled digits.

  Args:
    num_images: int >= 1.
    seed: non-negative int or list of them; the same seed and number give the
      same images.
    size: int >= 1, pixels.
    channels: int >= 1.
    num_classes: int >= 1.

  Returns:
    images uint8 [num_images, size, size, channels] in [0, 255], ink on 0;
    labels int32 [num_images] in [0, num_classes - 1].
  """
  rng = np.random.default_rng(seed)
  maps = _draw_distance_maps(rng)
  noise = rng.normal(0, 24, 1 << 20).astype(np.float32)
  labels = rng.integers(0, num_classes, num_images, dtype=np.int32)
  powers = 10 ** np.arange(len(str(num_classes - 1)), dtype=np.int32)[::-1]
  images = np.empty((num_images, size, size, channels), np.uint8)
  for start in range(0, num_images, _CHUNK):
    chunk = slice(start, start + _CHUNK)
    digits = labels[chunk, None] // powers % 10
    drawn = [_draw_chunk(rng, maps, noise, digit) for digit in digits.T]
    picture = _scale(np.concatenate(drawn, axis=2), size)
    if channels == 1:
      images[chunk, ..., 0] = picture
      continue
    tint = rng.uniform(0.4, 1, (channels, len(picture), 1, 1))
    for channel, share in enumerate(tint.astype(np.float32)):
      images[chunk, ..., channel] = picture * share
  return images, labels


def _scale(pictures: np.ndarray, size: int) -> np.ndarray:
  """Returns uint8 [n, size, size]; a pixel is the nearest of `pictures`."""
  pictures = pictures.astype(np.uint8)
  height, width = pictures.shape[1:]
  if (height, width) == (size, size):
    return pictures
  at = np.arange(size)
  return pictures[:, (at * height // size)[:, None], at * width // size]


def _draw_chunk(
  rng: np.random.Generator,
  maps: np.ndarray,
  noise: np.ndarray,
  labels: np.ndarray,
) -> np.ndarray:
  """Returns images float32 [n, 28, 28] in [0, 255]."""
  n = len(labels)

  def draw_column(low: float, high: float) -> np.ndarray:
    return rng.uniform(low, high, (n, 1)).astype(np.float32)

  angle, shear = draw_column(-0.25, 0.25), draw_column(-0.25, 0.25)
  height, width = draw_column(0.85, 1.15), draw_column(0.85, 1.25)
  at = np.arange(_SIZE, dtype=np.float32) - (_SIZE - 1) / 2
  x, y = at - draw_column(-2, 2), at - draw_column(-2, 2)
  cos, sin = np.cos(angle), np.sin(angle)
  bend = draw_column(-0.9, 0.9)
  # A pixel's place on the map, (u, v), is a term of its column plus one of its
  # row, waves included: one addition per pixel, nothing costlier.
  u_x, u_y = x * cos / width, y * (sin + shear) / width
  v_x, v_y = x * -sin / height, y * cos / height
  u_y += bend * np.sin(0.25 * y + draw_column(-3, 3))
  v_x += bend * np.sin(0.25 * x + draw_column(-3, 3))

  side = maps.shape[-1]
  u = (u_x * _SAMPLES + side / 2)[:, None, :] + (u_y * _SAMPLES)[:, :, None]
  v = (v_x * _SAMPLES)[:, None, :] + (v_y * _SAMPLES + side / 2)[:, :, None]
  index = np.clip(v, 0, side - 1, out=v).astype(np.int32)
  index *= side
  index += np.clip(u, 0, side - 1, out=u).astype(np.int32)
  hand = labels * _HANDS + rng.integers(0, _HANDS, n, dtype=np.int32)
  index += (hand * side * side)[:, None, None]
  image = maps.ravel()[index]

  # Full ink to `thickness` - 0.5 pixels from the stroke, none a pixel further.
  ink, thickness = draw_column(130, 255), draw_column(0.7, 1.7)
  image *= -ink[:, :, None]
  image += (ink * (thickness + 0.5))[:, :, None]
  np.clip(image, 0, ink[:, :, None], out=image)

  # A blot hides a part, which keeps a good net from being right every time.
  row, column = rng.integers(0, _SIZE, (2, n, 1))
  tall, wide = rng.integers(3, 11, (2, n, 1))
  pixel = np.arange(_SIZE)
  hidden_row = np.abs(pixel - row) * 2 < tall
  hidden_column = np.abs(pixel - column) * 2 < wide
  image[hidden_row[:, :, None] & hidden_column[:, None, :]] = 0
  offset = rng.integers(0, len(noise) - image.size)
  image += noise[offset : offset + image.size].reshape(image.shape)
  return np.clip(image, 0, 255, out=image)


def _draw_distance_maps(rng: np.random.Generator) -> np.ndarray:
  """Returns float32 [10 * _HANDS, side, side]: pixels to the nearest stroke."""
  side = 2 * _REACH * _SAMPLES
  at = ((np.arange(side) + 0.5) / _SAMPLES - _REACH).astype(np.float32)
  maps = np.empty((_DIGITS * _HANDS, side, side), np.float32)
  for i in range(len(maps)):
    styles = _STYLES[i // _HANDS]
    strokes = styles[i % len(styles)]
    ends = np.concatenate([np.stack([s[:-1], s[1:]], 1) for s in strokes])
    # A hand bends all strokes by one slow wave.
    wave = rng.uniform(-1, 1, (3, 2)) * [[0.16], [1.5], [3]]
    ends = ends + wave[0] * np.sin(ends[..., ::-1] * (1.5 + wave[1]) + wave[2])
    ends = (ends * _HALF_DIGIT).astype(np.float32)
    (x, y), (along_x, along_y) = ends[:, 0].T, (ends[:, 1] - ends[:, 0]).T
    # [segments, row, column]: from a segment's start, then from its nearest
    # point, `share` of the way along it.
    x = at - x[:, None, None]
    y = at[:, None] - y[:, None, None]
    length2 = along_x**2 + along_y**2
    share = x * (along_x / length2)[:, None, None]
    share = share + y * (along_y / length2)[:, None, None]
    np.clip(share, 0, 1, out=share)
    x = x - share * along_x[:, None, None]
    y = y - share * along_y[:, None, None]
    x *= x
    y *= y
    x += y
    maps[i] = np.sqrt(x.min(0))
  return maps


def _line(*points: tuple[float, float]) -> np.ndarray:
  return np.array(points, np.float64)


def _arc(
  x: float, y: float, width: float, height: float, start: float, end: float
) -> np.ndarray:
  """Points of an ellipse, angles in degrees: 0 right, 90 down."""
  turn = np.radians(np.linspace(start, end, 13))
  return np.stack([x + width * np.cos(turn), y + height * np.sin(turn)], 1)


# The ways to write each digit, each way a list of strokes: points (x, y) in
# [-1, 1], y downwards.
_STYLES = (
  ([_arc(0, 0, 0.85, 1, 0, 360)], [_arc(0, 0, 0.65, 1, 0, 360)]),
  (
    [_line((0, -1), (0, 1))],
    [_line((-0.55, -0.55), (0.1, -1), (0.1, 1))],
    [_line((-0.5, -0.6), (0, -1), (0, 1)), _line((-0.6, 1), (0.6, 1))],
  ),
  ([_arc(0, -0.4, 0.8, 0.6, -170, 40), _line((0.6, 0), (-0.8, 1), (0.9, 1))],),
  (
    [_arc(-0.1, -0.5, 0.8, 0.5, -160, 90), _arc(-0.1, 0.5, 0.9, 0.5, -90, 160)],
  ),
  (
    [_line((0.4, 1), (0.4, -1), (-0.9, 0.35), (0.95, 0.35))],
    [_line((-0.6, -1), (-0.7, 0.1), (0.8, 0.1)), _line((0.5, -0.8), (0.5, 1))],
  ),
  (
    [
      _line((0.8, -1), (-0.6, -1), (-0.7, -0.1)),
      _arc(-0.05, 0.35, 0.85, 0.65, -140, 150),
    ],
  ),
  (
    [
      _arc(0.5, -0.1, 1.2, 0.9, -100, -180),
      _arc(0, 0.4, 0.75, 0.6, 0, 360),
    ],
  ),
  (
    [_line((-0.8, -1), (0.8, -1), (-0.3, 1))],
    [_line((-0.8, -1), (0.8, -1), (-0.2, 1)), _line((-0.4, 0), (0.6, 0))],
  ),
  ([_arc(0, -0.5, 0.65, 0.5, 0, 360), _arc(0, 0.5, 0.8, 0.5, 0, 360)],),
  (
    [_arc(0, -0.4, 0.75, 0.6, 0, 360), _line((0.75, -0.4), (0.4, 1))],
    [_arc(0, -0.4, 0.7, 0.6, 0, 360), _arc(-0.3, 0.1, 1.0, 0.9, -30, 110)],
  ),
)
