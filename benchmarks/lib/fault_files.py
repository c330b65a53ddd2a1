"""Calls of the tasks that fail or hang: a library which they preload.

A folder is on a disk that is full, that errs or that answers no more, and the
kernel refuses to fork: the library reads a page of shared memory which says so,
so that a fault begins and ends at once in the tasks that it is for. A call that
hangs ends with its process, unlike one on a hung disk, or when the fault does.
The history of a run, which tells what became of it, is spared.
"""

import errno
import mmap
import pathlib
import shutil
import struct
import subprocess

# Errors that a checkpoint write meets, with their numbers.
WRITE_ERRORS = {
  'EIO': errno.EIO,
  'ENOSPC': errno.ENOSPC,
  'EDQUOT': errno.EDQUOT,
}
READS, WRITES, FORKS = 1, 2, 4
HANGS = 0  # In place of an errno.
_FOREVER = 2**30
_NAME_SIZE = 64
_LAYOUT = struct.Struct(f'iiii{_NAME_SIZE}s')
_CONTROL, _FOLDER = 'FAULT_CONTROL', 'FAULT_FOLDER'
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2, FORKS = 4 };
static volatile struct {
  int calls, pid, error, left;
  char name[64];
} *control;
static const char *folder;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("FAULT_CONTROL");
  folder = getenv("FAULT_FOLDER");
  int file = path && folder ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) control = page;
}

/* Whether this call fails; one that hangs comes back when the fault is over. */
static int fails(int call, const char *path) {
  while (control && control->calls & call) {
    if (control->pid && control->pid != getpid()) return 0;
    if (call != FORKS && strncmp(path, folder, strlen(folder))) return 0;
    if (call != FORKS && strstr(path, "/history/")) return 0;
    if (call != FORKS && !strstr(path, (const char *)control->name)) return 0;
    if (control->error) {
      if (control->left <= 0) return 0;
      if (__sync_fetch_and_sub(&control->left, 1) <= 0) return 0;
      errno = control->error;
      return 1;
    }
    usleep(20000);
  }
  return 0;
}

static int fails_at(int call, int fd) {
  char link[64], path[4096];
  if (!control || !(control->calls & call) || fd < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return fails(call, path);
}

#define REAL(type, name, ...)                              \
  static type (*real)(__VA_ARGS__);                        \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                                         \
  int name(const char *path, int flags, ...) {                             \
    REAL(int, name, const char *, int, ...);                               \
    va_list list;                                                          \
    va_start(list, flags);                                                 \
    mode_t mode = va_arg(list, mode_t);                                    \
    va_end(list);                                                          \
    int call = flags & (O_WRONLY | O_RDWR | O_CREAT) ? WRITES : READS;     \
    return fails(call, path) ? -1 : real(path, flags, mode);               \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                        \
  FILE *name(const char *path, const char *mode) {                         \
    REAL(FILE *, name, const char *, const char *);                        \
    int call = strpbrk(mode, "wa+") ? WRITES : READS;                      \
    return fails(call, path) ? NULL : real(path, mode);                    \
  }
FOPEN(fopen)
FOPEN(fopen64)

#define READ_AT(name, offset)                                              \
  ssize_t name(int fd, void *to, size_t n, offset at) {                    \
    REAL(ssize_t, name, int, void *, size_t, offset);                      \
    return fails_at(READS, fd) ? -1 : real(fd, to, n, at);                 \
  }
READ_AT(pread, off_t)
READ_AT(pread64, off64_t)

ssize_t read(int fd, void *to, size_t n) {
  REAL(ssize_t, read, int, void *, size_t);
  return fails_at(READS, fd) ? -1 : real(fd, to, n);
}
ssize_t write(int fd, const void *from, size_t n) {
  REAL(ssize_t, write, int, const void *, size_t);
  return fails_at(WRITES, fd) ? -1 : real(fd, from, n);
}
size_t fwrite(const void *from, size_t size, size_t n, FILE *file) {
  REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
  return fails_at(WRITES, fileno(file)) ? 0 : real(from, size, n, file);
}
int fsync(int fd) {
  REAL(int, fsync, int);
  return fails_at(WRITES, fd) ? -1 : real(fd);
}
int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  return fails(WRITES, to) ? -1 : real(from, to);
}
int link(const char *from, const char *to) {
  REAL(int, link, const char *, const char *);
  return fails(WRITES, to) ? -1 : real(from, to);
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, mkdir, const char *, mode_t);
  return fails(WRITES, path) ? -1 : real(path, mode);
}
pid_t fork(void) {
  REAL(pid_t, fork, void);
  return fails(FORKS, "") ? -1 : real();
}
"""


class CannotError(Exception):
  """This fault is impossible on this machine; the text says why."""


class Files:
  """The calls of a run's tasks; a context that lets all of them pass.

  Attributes:
    env: {name: value}, what the tasks need in their environment.
  """

  def __init__(self, folder, below):
    """
    Args:
      folder: path, for the library and the page of shared memory.
      below: path; only calls on files in this folder fail or hang.

    Raises:
      CannotError: there is no C compiler.
    """
    folder = pathlib.Path(folder)
    compiler = shutil.which('cc')
    if not compiler:
      raise CannotError('no C compiler (cc) on this machine')
    library = folder / 'fault_files.so'
    subprocess.run(
      [compiler, '-shared', '-fPIC', '-O1', '-x', 'c']
      + ['-o', str(library), '-', '-ldl'],
      input=_SOURCE,
      text=True,
      check=True,
    )
    control = folder / 'fault_control'
    control.write_bytes(bytes(mmap.PAGESIZE))
    with open(control, 'r+b') as file:
      self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    self.env = {
      'LD_PRELOAD': str(library),
      _CONTROL: str(control),
      _FOLDER: str(below),
    }

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.mend()

  def fail(self, calls, error, pid=0, times=_FOREVER, name=''):
    """Makes calls fail or hang from now on.

    Args:
      calls: int, READS, WRITES and FORKS, added up.
      error: int, an errno, or HANGS.
      pid: int, of the only process; 0 for all.
      times: int, how many calls fail; all by default.
      name: str, what the path of the file has in it.
    """
    self.mend()
    # The calls come last: they are what the tasks look at.
    packed = _LAYOUT.pack(0, pid, error, times, name.encode())
    self._page[4 : len(packed)] = packed[4:]
    self._page[:4] = struct.pack('i', calls)

  def mend(self):
    """Lets all calls pass again, also those that hang."""
    self._page[:4] = bytes(4)
