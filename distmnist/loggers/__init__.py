"""Where metrics go besides the log directory, one file per place.

A logger is a module with two functions: `check()`, which raises cli.RunError
if its library is missing, and `make(logdir, flags)`, which returns an object
with `log(task, time, step, numbers)` and `close(ok)`.
"""
