"""Where metrics go beside the log directory, one place a file.

A logger is a module with two functions: `check()`, which raises cli.RunError
where its library is not there, and `make(logdir, flags)`, which returns an
object with `log(task, time, step, numbers)` and `close(state)`.
"""
