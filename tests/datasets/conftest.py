"""The fixtures of tests.support.mirror."""

from tests.support.mirror import (  # noqa: F401
  gz_files,
  md5s,
  mirror,
  raw_files,
  start_mirror,
)
