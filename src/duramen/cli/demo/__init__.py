"""`duramen demo`: a tour of duramen on scratch logs.

`demo` runs the acts in order and prints a summary; each act is a module with a ``TITLE`` and ``play(stage)``. `stage`
shows a command, runs it and prints its output; `samples` writes the small logs of the documentation and the tests.
Everything printed comes from a real run, and every claim is checked.
"""
