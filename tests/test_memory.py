"""The documented sizes of states are those of now."""

from benchmarks.memory import PAGE, written


def test_the_table_of_the_page_is_that_of_now():
    page = PAGE.read_text()
    assert written(page) == page
