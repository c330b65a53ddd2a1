"""Checkpoint writes that fail, by a library that the tasks preload."""

import functools
import pathlib
import shutil
import subprocess

# Errors that a checkpoint write meets, with their numbers.
WRITE_ERRORS = {'EIO': 5, 'ENOSPC': 28, 'EDQUOT': 122}
ERROR_FILE = 'FAULTS_ERRNO_FILE'
# Calls on a checkpoint's file fail with the number in ERROR_FILE, if any.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fails(int fd) {
  char link[64], path[4096], number[16];
  const char *name = getenv("FAULTS_ERRNO_FILE");
  if (!name || fd < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  if (!strstr(path, "model.ckpt")) return 0;
  int file = open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  n = read(file, number, sizeof number - 1);
  close(file);
  if (n <= 0) return 0;
  number[n] = 0;
  errno = atoi(number);
  return errno != 0;
}
size_t fwrite(const void *p, size_t size, size_t n, FILE *f) {
  static size_t (*real)(const void *, size_t, size_t, FILE *);
  if (!real) real = dlsym(RTLD_NEXT, "fwrite");
  return f != stdout && f != stderr && fails(fileno(f)) ? 0
                                                        : real(p, size, n, f);
}
int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  return fails(fd) ? -1 : real(fd);
}
"""


class CannotError(Exception):
  """This fault is impossible on this machine; the text says why."""


@functools.cache
def compile_shim(folder):
  """Returns the path of a library that makes checkpoint writes fail.

  Args:
    folder: str, where to build it.

  Raises:
    CannotError: there is no C compiler.
  """
  compiler = shutil.which('cc')
  if not compiler:
    raise CannotError('no C compiler (cc) on this machine')
  library = pathlib.Path(folder) / 'shim.so'
  subprocess.run(
    [compiler, '-shared', '-fPIC', '-x', 'c', '-o', str(library), '-', '-ldl'],
    input=SHIM,
    text=True,
    check=True,
  )
  return str(library)


def make_env(kind, folder):
  """Returns {name: value}, the variables that the tasks need for a kind.

  Raises:
    CannotError: the kind is impossible on this machine.
  """
  if kind not in WRITE_ERRORS:
    return {}
  return {
    'LD_PRELOAD': compile_shim(str(folder)),
    ERROR_FILE: str(pathlib.Path(folder) / 'errno'),
  }
