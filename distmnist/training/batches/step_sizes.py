"""Whether all global steps of a run had the same number of images.

Only then does their number tell how many images were read. The table of the
batches (batch_table.py) has, besides the images in a step of this life, an int
for those of earlier lives: 0 if they had as many, -n if all had n instead, and
MIXED if they differed.
"""

MIXED = 1


def describe(table, global_step, images_per_step):
  """Returns that int for a life that begins.

  Args:
    table: int64 array [2 * num_rows, 3], of the life before.
    global_step: int, at which that life ended.
    images_per_step: int, of the life that begins.
  """
  base_step = int(table[0, 0])
  _, size, earlier = table[len(table) // 2].tolist()
  if earlier == MIXED:
    return MIXED
  sizes = set()
  if base_step:
    sizes.add(-earlier or size)
  # A life may have ended before its first step.
  if global_step != base_step:
    sizes.add(size)
  sizes.discard(0)  # Of a checkpoint that does not tell.
  if not sizes or sizes == {images_per_step}:
    return 0
  return -sizes.pop() if len(sizes) == 1 else MIXED
