"""`duramen demo`: a tour of duramen on scratch logs.

``tour.txt`` is the tour: acts with text, commands, Python, and claims with the expressions that prove them. `stage`
plays it, `props` has the functions of its hidden lines, and `demo` prints a summary. `samples` writes the small logs of
the documentation and the tests. Everything printed comes from a real run, and every claim is checked.
"""
