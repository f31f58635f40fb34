"""The mutations of `tests.mutations` still fit the source. Whether they are caught takes longer: run the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation, StaleMutationError, failed_test, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_the_source(mutation: Mutation) -> None:
    path, text = mutated(ROOT, mutation)
    assert text != path.read_text(encoding="utf-8")
    tests = [word for word in mutation.tests.split() if word.startswith("tests/")]
    assert tests
    for file, _, name in (word.partition("[")[0].partition("::") for word in tests):
        assert (ROOT / file).exists()
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_enough_of_them_in_every_area() -> None:
    assert len(MUTATIONS) >= 30
    areas = {mutation.area for mutation in MUTATIONS}
    assert areas >= {"recovery", "commit", "transactions", "repair", "verify", "groups", "sink", "formats"}
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_piece_that_is_missing_is_noticed(tmp_path: Path) -> None:
    package = tmp_path / "src/duramen/p"
    package.mkdir(parents=True)
    (package / "m.py").write_text('class A:\n    def f(self):\n        """Doc."""\n        return g(1)\n')
    assert mutated(tmp_path, Mutation("n", "p", "A.f", "g(1)", "2", ""))[1].endswith("return 2\n")
    assert mutated(tmp_path, Mutation("n", "p", "A.f", "", "pass", ""))[1].endswith('"""Doc."""\n        pass\n')
    for function, old in (("A.f", "h(1)"), ("f", "g(1)"), ("A.g", "")):
        with pytest.raises(StaleMutationError):
            mutated(tmp_path, Mutation("n", "p", function, old, "", ""))


def test_the_failed_test_is_named_with_its_parameters() -> None:
    assert failed_test("FAILED tests/t.py::test_a[{'b': 4}] - assert 1 == 2") == "tests/t.py::test_a[{'b': 4}]"
    assert failed_test("ERROR tests/t.py::test_a[b c]") == "tests/t.py::test_a[b c]"
