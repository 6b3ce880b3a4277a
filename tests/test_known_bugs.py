"""Every known bug that can happen here has a test, and the page that lists them is current."""

from __future__ import annotations

import pytest

from tests.known_bugs import BUGS, NOT_HERE, PAGE, marked_tests, page

IDS = [bug for group in BUGS.values() for bug in group]


@pytest.mark.parametrize("bug", [bug for bug in IDS if bug not in NOT_HERE])
def test_a_known_bug_has_a_test(bug: str) -> None:
    assert bug in marked_tests()


def test_no_test_names_a_bug_that_is_not_listed() -> None:
    assert set(marked_tests()) <= set(IDS)


def test_the_page_lists_the_tests_as_they_are_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.known_bugs"
