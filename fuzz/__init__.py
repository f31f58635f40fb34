"""Bytes of every kind thrown at every decoder: ``python -m fuzz --seconds 60``.

`targets` lists the decoders, `checks` says what must hold whatever the bytes are, `seeds` takes the test data apart,
`agreement` holds the kernel against its Python twin, `memory` sets the bound on what a decoder may allocate. The
runner is coverage-guided (atheris); ``tests/test_fuzz.py`` runs the same targets without it, on fixed mutations.
"""
